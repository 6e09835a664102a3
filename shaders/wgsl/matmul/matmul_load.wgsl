            // The block of this invocation, `left` k before the end.
            if second {
#if TRANSPOSE_B
                let count = less(left, k_mine);
                v0 = along_b(at, count);
                v1 = along_b(at + apart.x, count);
                v2 = along_b(at + apart.y, count);
                v3 = along_b(at + apart.z, count);
#else
                v0 = across_b(at, less(left, k_mine), last);
                v1 = across_b(at + apart.x, less(left, k_mine + AT_ONCE), last);
                v2 = across_b(at + apart.y, less(left, k_mine + 2u * AT_ONCE), last);
                v3 = across_b(at + apart.z, less(left, k_mine + 3u * AT_ONCE), last);
#endif
            } else {
#if TRANSPOSE_A
                v0 = across_a(at, less(left, k_mine), last);
                v1 = across_a(at + apart.x, less(left, k_mine + AT_ONCE), last);
                v2 = across_a(at + apart.y, less(left, k_mine + 2u * AT_ONCE), last);
                v3 = across_a(at + apart.z, less(left, k_mine + 3u * AT_ONCE), last);
#else
                let count = less(left, k_mine);
                v0 = along_a(at, count);
                v1 = along_a(at + apart.x, count);
                v2 = along_a(at + apart.y, count);
                v3 = along_a(at + apart.z, count);
#endif
            }
