        // The products of a slice, sixteen k at a time.
        {
            const step = 0u;
#include cooperative_step
        }
        {
            const step = 16u;
#include cooperative_step
        }
#if COLUMNS == 128
        {
            const step = 32u;
#include cooperative_step
        }
        {
            const step = 48u;
#include cooperative_step
        }
#endif
