            // Four k from `at_k` on.
            {
                var ia = at_k * QUARTERS + place_of_a(here.y, at_k);
                var ib = 512u + at_k * QUARTERS + place_of_b(here.x, at_k);
#include gemm_step
#include gemm_step
#include gemm_step
#include gemm_step
                at_k += 4u;
            }
