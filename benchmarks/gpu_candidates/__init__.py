"""Candidates for products of few rows with matrices of 4 bits on a GPU, which `benchmarks.gpu_few` times.

They are compiled for an H200 and interpreted, and were timed on no GPU yet; what wins goes to `pallas_kernels`. Of instructions a
number of the matrix, where 3.7 are allowed at 4 TB/s, int4 takes 2.3 beside one row and 2.6 beside 16 in `few`, for 3.8 and 4.6
in what serves today; MXFP4 4.0.
"""
