        // The products of a slice, without a loop: compilers of drivers leave one as it is, and that takes a third longer.
        {
#if TILE == 32
            var at_k = (local / 64u) * (DEPTH / 4u);
#else
            var at_k = 0u;
#endif
#include gemm_four
#include gemm_four
#include gemm_four
#include gemm_four
#if TILE == 64
#include gemm_four
#include gemm_four
#include gemm_four
#include gemm_four
#endif
        }
