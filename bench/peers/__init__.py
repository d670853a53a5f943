"""The gradient of unpermute by moetoken and by its peers, side by side: see README.md."""
