/* What the two halves of the emulated driver say to each other. */
#ifndef CAIRN_EMULATED_H
#define CAIRN_EMULATED_H

#include <stddef.h>

#include <string>

/* The code with which this call is to fail, or 0. [emulated_cuda.cpp] */
int emulated_fault();

/* Of a cubin as nvrtcGetCUBIN gave it; 0 if it is none. [emulated_nvrtc.cpp] */
size_t emulated_image_bytes(const void *image);

/* The shared library that a cubin stands for, compiled unless it is kept; "" behind a message where it cannot be.
 * [emulated_nvrtc.cpp] */
std::string emulated_library(const std::string &image);

#endif
