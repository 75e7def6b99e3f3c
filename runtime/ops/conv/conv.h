/* conv: the short convolution of hybrid models: its entries (conv.c), the CPU's rows
 * (conv_cpu.c) and the metadata of a batch (metadata.c). Splitting a sequence over calls in any
 * way changes no bit. Other rooms call the public entries alone. */
