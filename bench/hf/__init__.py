"""Experts of Hugging Face transformers: moetoken.torch.hf beside transformers' own."""
