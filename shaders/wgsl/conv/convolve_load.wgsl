            // The block of this invocation, from `k` on.
            if second {
                v0 = seen(at_pixels, k + k_mine, end);
                v1 = seen(at_pixels, k + k_mine + AT_ONCE, end);
                v2 = seen(at_pixels, k + k_mine + 2u * AT_ONCE, end);
                v3 = seen(at_pixels, k + k_mine + 3u * AT_ONCE, end);
            } else {
                let count = end - min(k + k_mine, end);
                v0 = along_a(at.x, count);
                v1 = along_a(at.y, count);
                v2 = along_a(at.z, count);
                v3 = along_a(at.w, count);
            }
