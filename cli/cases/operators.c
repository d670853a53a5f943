/* operators.c - the operators and the router as the tool sees them: names of commands and of
 * tensors. */
#include "operators.h"

#include <string.h>

const struct operator_outputs operator_outputs[OPERATORS_COUNT] = {
    [OPERATOR_UNPERMUTE_GRAD] = {"unpermute-grad",
                                 {"permuted_tokens_grad", "probs_grad", "weights_grad"}},
    [OPERATOR_UNPERMUTE] = {"unpermute",
                            {"unpermuted_tokens", "out_index", "permute_token_id",
                             "permuted_probs"}},
    [OPERATOR_PERMUTE] = {"permute",
                          {"permuted_tokens", "permuted_probs", "sorted_indices", "source_slots",
                           "rows_per_expert"}},
    [OPERATOR_PERMUTE_GRAD] = {"permute-grad", {"tokens_grad", "probs_grad", "weights_grad"}},
    [OPERATOR_ROUTER] = {"router",
                         {"expert_ids", "weights", "scores", "rows_per_expert", "routing_map",
                          "probs"}},
    [OPERATOR_ROUTER_GRAD] = {"router-grad", {"logits_grad"}},
};

bool find_operator(const char *name, enum operator_kind *kind)
{
    for (int i = 0; i < OPERATORS_COUNT; i++) {
        if (strcmp(operator_outputs[i].name, name) == 0) {
            *kind = (enum operator_kind)i;
            return true;
        }
    }
    return false;
}
