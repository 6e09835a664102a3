            // The block of this invocation, `left` k before the end.
            if second {
#if TRANSPOSE_B
                let count = less(left, k_mine);
                v0 = along_b(at.x, count);
                v1 = along_b(at.y, count);
                v2 = along_b(at.z, count);
                v3 = along_b(at.w, count);
#else
                v0 = across_b(at.x, less(left, k_mine), last);
                v1 = across_b(at.y, less(left, k_mine + AT_ONCE), last);
                v2 = across_b(at.z, less(left, k_mine + 2u * AT_ONCE), last);
                v3 = across_b(at.w, less(left, k_mine + 3u * AT_ONCE), last);
#endif
            } else {
#if TRANSPOSE_A
                v0 = across_a(at.x, less(left, k_mine), last);
                v1 = across_a(at.y, less(left, k_mine + AT_ONCE), last);
                v2 = across_a(at.z, less(left, k_mine + 2u * AT_ONCE), last);
                v3 = across_a(at.w, less(left, k_mine + 3u * AT_ONCE), last);
#else
                let count = less(left, k_mine);
                v0 = along_a(at.x, count);
                v1 = along_a(at.y, count);
                v2 = along_a(at.z, count);
                v3 = along_a(at.w, count);
#endif
            }
