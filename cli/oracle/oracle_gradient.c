/* oracle_gradient.c - what a row of permuted_tokens_grad must be: for verify, and for bench
 * --verify, which looks at a sample of the rows. */
#include "oracle_report.h"
#include "values/number_formats.h"

/* round(float32(w) * float32(g)); binary64 throughout for float64. */
static double product_of(moetoken_type type, double weight, double g)
{
    double product = weight * g; /* exact for two float32 numbers */
    bool half = type != MOETOKEN_F32 && type != MOETOKEN_F64;
    return half ? (float)product : product;
}

void oracle_check_gradient_row(const struct oracle_case *oracle, const struct oracle_slots *slots,
                               int64_t row, double *scratch, struct output_report *report)
{
    const DLTensor *g = oracle->unpermuted_tokens_grad, *output = oracle->output[0];
    int64_t hidden = oracle->hidden, slot = slots->slot_of_row[row], first = row * hidden;
    bool zero = slot < 0 || slots->masked[slot];
    bool weighted = oracle->probs != NULL || oracle->weights != NULL;
    int64_t from = zero ? 0 : slots->token[slot] * hidden;
    if (!zero && weighted)
        floats_at(g, from, hidden, scratch);
    for (int64_t h = 0; h < hidden; h++) {
        uint64_t got = bits_at(output, first + h);
        if (zero)
            report_bits(report, first + h, got, 0);
        else if (!weighted)
            report_bits(report, first + h, got, bits_at(g, from + h));
        else
            report_rounded(report, first + h, got,
                           product_of(report->type, slots->weight[slot], scratch[h]));
    }
}
