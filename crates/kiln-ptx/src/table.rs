//! The instructions of PTX that kernels are written in: one table, from which come the methods of the builder, their
//! documentation, what they ask of version and target, and the tests.

use crate::builder::Row;
use crate::builder::Value;
use crate::builder::operands::*;
use crate::ptx_type::PtxType;
use crate::text::Line;
use crate::types::{Bf16, F16, Operand, Scalar};
use crate::{Builder, Gate, Target};

/// The table of instructions; calls `$callback!` with its rows.
///
/// A row is: the trait of the types for which the instruction exists, the method, its operands, its result or `()`, and
/// for each minimum PTX version and minimum target the types with the name of the instruction; `T` is replaced by the
/// type. The rows have two sections: instructions of a single thread with scalar operands, and instructions that
/// threads run together or whose operands are addresses, constants and lists of registers.
#[macro_export]
macro_rules! instruction_table {
    ($callback:path) => {
        $callback! {
            {
            /// `a + b`; rounded to nearest, or wrapping.
            Add add(a: T, b: T) -> T
                { 6.0 Sm70: f32 "add.rn.f32", f64 "add.rn.f64", u32 "add.u32", i32 "add.s32", u64 "add.u64" }
            /// `a - b`; rounded to nearest, or wrapping.
            Sub sub(a: T, b: T) -> T
                { 6.0 Sm70: f32 "sub.rn.f32", f64 "sub.rn.f64", u32 "sub.u32", i32 "sub.s32", u64 "sub.u64" }
            /// `a * b`; rounded to nearest, or the lower half.
            Mul mul(a: T, b: T) -> T
                { 6.0 Sm70: f32 "mul.rn.f32", f64 "mul.rn.f64", u32 "mul.lo.u32", i32 "mul.lo.s32", u64 "mul.lo.u64" }
            /// `a * b` in twice the bits.
            MulWide mul_wide(a: T, b: T) -> u64 { 6.0 Sm70: u32 "mul.wide.u32" }
            /// `a * b + c`, the lower half.
            Mad mad(a: T, b: T, c: T) -> T { 6.0 Sm70: u32 "mad.lo.u32", i32 "mad.lo.s32", u64 "mad.lo.u64" }
            /// `a * b + c`, product and sum in twice the bits.
            MadWide mad_wide(a: T, b: T, c: u64) -> u64 { 6.0 Sm70: u32 "mad.wide.u32" }
            /// `a * b + c`, rounded once.
            Fma fma(a: T, b: T, c: T) -> T { 6.0 Sm70: f32 "fma.rn.f32", f64 "fma.rn.f64" }
            /// `a / b`; rounded to nearest, or towards zero. An integer division by zero is undefined.
            Div div(a: T, b: T) -> T
                { 6.0 Sm70: f32 "div.rn.f32", f64 "div.rn.f64", u32 "div.u32", i32 "div.s32", u64 "div.u64" }
            /// The remainder of `a / b`, with the sign of `a`. A division by zero is undefined.
            Rem rem(a: T, b: T) -> T { 6.0 Sm70: u32 "rem.u32", i32 "rem.s32", u64 "rem.u64" }
            /// `-a`
            Neg neg(a: T) -> T { 6.0 Sm70: f32 "neg.f32", f64 "neg.f64", i32 "neg.s32" }
            /// `|a|`
            Abs abs(a: T) -> T { 6.0 Sm70: f32 "abs.f32", f64 "abs.f64", i32 "abs.s32" }
            /// The minimum; if one operand is NaN, the other; -0 is less than +0.
            Min min(a: T, b: T) -> T
                { 6.0 Sm70: f32 "min.f32", f64 "min.f64", u32 "min.u32", i32 "min.s32", u64 "min.u64" }
            /// The maximum; if one operand is NaN, the other; -0 is less than +0.
            Max max(a: T, b: T) -> T
                { 6.0 Sm70: f32 "max.f32", f64 "max.f64", u32 "max.u32", i32 "max.s32", u64 "max.u64" }
            /// The minimum, NaN if either is NaN; -0 is less than +0.
            MinNan min_nan(a: T, b: T) -> T { 7.0 Sm80: f32 "min.NaN.f32" }
            /// The maximum, NaN if either is NaN; -0 is less than +0.
            MaxNan max_nan(a: T, b: T) -> T { 7.0 Sm80: f32 "max.NaN.f32" }
            /// `√a`, rounded to nearest.
            Sqrt sqrt(a: T) -> T { 6.0 Sm70: f32 "sqrt.rn.f32", f64 "sqrt.rn.f64" }
            /// `1 / a`, rounded to nearest.
            Rcp rcp(a: T) -> T { 6.0 Sm70: f32 "rcp.rn.f32", f64 "rcp.rn.f64" }
            /// `b` with the sign of `a`.
            Copysign copysign(a: T, b: T) -> T { 6.0 Sm70: f32 "copysign.f32", f64 "copysign.f64" }
            /// `a & b`
            And and(a: T, b: T) -> T { 6.0 Sm70: bool "and.pred", u32 "and.b32", u64 "and.b64" }
            /// `a | b`
            Or or(a: T, b: T) -> T { 6.0 Sm70: bool "or.pred", u32 "or.b32", u64 "or.b64" }
            /// `a ^ b`
            Xor xor(a: T, b: T) -> T { 6.0 Sm70: bool "xor.pred", u32 "xor.b32", u64 "xor.b64" }
            /// `!a`
            Not not(a: T) -> T { 6.0 Sm70: bool "not.pred", u32 "not.b32", u64 "not.b64" }
            /// `a << b`, 0 from the number of bits on.
            Shl shl(a: T, b: u32) -> T { 6.0 Sm70: u32 "shl.b32", i32 "shl.b32", u64 "shl.b64" }
            /// `a >> b`; a signed integer keeps its sign. From the number of bits on 0, or the sign.
            Shr shr(a: T, b: u32) -> T { 6.0 Sm70: u32 "shr.u32", i32 "shr.s32", u64 "shr.u64" }
            /// Selects four bytes from `b` (upper) and `a` (lower): each hexadecimal digit of `c`, lowest first, is the
            /// index of a byte, counted from the lowest.
            Prmt prmt(a: T, b: u32, c: u32) -> T { 6.0 Sm70: u32 "prmt.b32" }
            /// `a < b`
            Lt lt(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.lt.f32", f64 "setp.lt.f64", u32 "setp.lt.u32", i32 "setp.lt.s32", u64 "setp.lt.u64" }
            /// `a <= b`
            Le le(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.le.f32", f64 "setp.le.f64", u32 "setp.le.u32", i32 "setp.le.s32", u64 "setp.le.u64" }
            /// `a > b`
            Gt gt(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.gt.f32", f64 "setp.gt.f64", u32 "setp.gt.u32", i32 "setp.gt.s32", u64 "setp.gt.u64" }
            /// `a >= b`
            Ge ge(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.ge.f32", f64 "setp.ge.f64", u32 "setp.ge.u32", i32 "setp.ge.s32", u64 "setp.ge.u64" }
            /// `a == b`
            Eq eq(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.eq.f32", f64 "setp.eq.f64", u32 "setp.eq.u32", i32 "setp.eq.s32", u64 "setp.eq.u64" }
            /// `a != b`; false if either is NaN.
            Ne ne(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.ne.f32", f64 "setp.ne.f64", u32 "setp.ne.u32", i32 "setp.ne.s32", u64 "setp.ne.u64" }
            /// Whether either is NaN.
            Nan nan(a: T, b: T) -> bool { 6.0 Sm70: f32 "setp.nan.f32", f64 "setp.nan.f64" }
            /// `a` if `c`, else `b`.
            Selp selp(a: T, b: T, c: bool) -> T { 6.0 Sm70:
                f32 "selp.f32", f64 "selp.f64", u32 "selp.u32", i32 "selp.s32", u64 "selp.u64" }
            /// The lower half of `a`, as `u32`.
            CvtU32 cvt_u32(a: T) -> u32 { 6.0 Sm70: u64 "cvt.u32.u64" }
            /// `a` as `u64`, exactly.
            CvtU64 cvt_u64(a: T) -> u64 { 6.0 Sm70: u32 "cvt.u64.u32" }
            /// The nearest integer, ties to even; NaN gives 0, values out of range give the nearest limit.
            CvtRniS32 cvt_rni_s32(a: T) -> i32 { 6.0 Sm70: f32 "cvt.rni.s32.f32" }
            /// The nearest integer, ties to even; zeros have the sign of `a`.
            CvtRni cvt_rni(a: T) -> T { 6.0 Sm70: f32 "cvt.rni.f32.f32" }
            /// The integer towards zero; zeros have the sign of `a`.
            CvtRzi cvt_rzi(a: T) -> T { 6.0 Sm70: f32 "cvt.rzi.f32.f32" }
            /// The largest integer not above `a`; zeros have the sign of `a`.
            CvtRmi cvt_rmi(a: T) -> T { 6.0 Sm70: f32 "cvt.rmi.f32.f32" }
            /// The smallest integer not below `a`; zeros have the sign of `a`.
            CvtRpi cvt_rpi(a: T) -> T { 6.0 Sm70: f32 "cvt.rpi.f32.f32" }
            /// The integer towards zero; NaN gives 0, values out of range give the nearest limit.
            CvtRziS32 cvt_rzi_s32(a: T) -> i32 { 6.0 Sm70: f32 "cvt.rzi.s32.f32" }
            /// The integer towards zero; NaN gives 0, values out of range give the nearest limit.
            CvtRziU32 cvt_rzi_u32(a: T) -> u32 { 6.0 Sm70: f32 "cvt.rzi.u32.f32" }
            /// `a` as `f32`, rounded to nearest.
            CvtRnF32 cvt_rn_f32(a: T) -> f32
                { 6.0 Sm70: u32 "cvt.rn.f32.u32", i32 "cvt.rn.f32.s32", f64 "cvt.rn.f32.f64" }
            /// `a` as `f64`, rounded to nearest.
            CvtRnF64 cvt_rn_f64(a: T) -> f64 { 6.0 Sm70: u32 "cvt.rn.f64.u32", u64 "cvt.rn.f64.u64" }
            /// `a` as `f64`, exactly.
            CvtF64 cvt_f64(a: T) -> f64 { 6.0 Sm70: f32 "cvt.f64.f32" }
            /// The bits as `u32`.
            BitsU32 bits_u32(a: T) -> u32 { 6.0 Sm70: f32 "mov.b32", i32 "mov.b32" }
            /// The bits as `i32`.
            BitsS32 bits_s32(a: T) -> i32 { 6.0 Sm70: f32 "mov.b32", u32 "mov.b32" }
            /// The bits as `u64`.
            BitsU64 bits_u64(a: T) -> u64 { 6.0 Sm70: f64 "mov.b64" }
            /// The number with these bits.
            BitsF32 bits_f32(a: T) -> f32 { 6.0 Sm70: u32 "mov.b32", i32 "mov.b32" }
            /// The number with these bits.
            BitsF64 bits_f64(a: T) -> f64 { 6.0 Sm70: u64 "mov.b64" }
            /// `a` of the lane whose number is this one's xor `b`, bit for bit; `c` limits the exchange (31: the whole
            /// warp), `members` are the participating lanes.
            ShflBfly shfl_bfly(a: T, b: u32, c: u32, members: u32) -> T
                { 6.0 Sm70: f32 "shfl.sync.bfly.b32", u32 "shfl.sync.bfly.b32" }
            /// Waits until every thread of the block has arrived; all then see earlier writes of the others.
            BarSync bar_sync(barrier: T) -> () { 6.0 Sm70: u32 "bar.sync" }
            }
            {
            /// The word at `from`, which another device may have written: if it was stored by [`Builder::st_release_sys`], this
            /// thread then sees everything that happened before that store.
            LdAcquireSys ld_acquire_sys(from: GlobalAt) -> T { 6.0 Sm70: u32 "ld.acquire.sys.global.u32" }
            /// Stores a word for another device, which sees everything that happened before in this thread, and in threads that
            /// it has waited for, once it has loaded the word by [`Builder::ld_acquire_sys`].
            StReleaseSys st_release_sys(to: GlobalAt, value: T) -> () { 6.0 Sm70: u32 "st.release.sys.global.u32" }
            /// Aborts the launch: the device is lost.
            Trap trap() -> () { 6.0 Sm70: u32 "trap" }
            /// `a` as `f32`, exactly.
            CvtF32 cvt_f32(a: T) -> f32 { 6.0 Sm70: F16 "cvt.f32.f16"; 7.1 Sm80: Bf16 "cvt.f32.bf16" }
            /// `2ᵃ` within two units in the last place; subnormal numbers count as zeros, before and after.
            Ex2 ex2(a: T) -> T { 6.0 Sm70: f32 "ex2.approx.ftz.f32" }
            /// `1 / a` within a unit in the last place; subnormal numbers count as zeros, before and after.
            RcpApprox rcp_approx(a: T) -> T { 6.0 Sm70: f32 "rcp.approx.ftz.f32" }
            /// `a` as a 16-bit number, rounded to nearest.
            CvtRn cvt_rn(a: f32) -> T { 6.0 Sm70: F16 "cvt.rn.f16.f32"; 7.0 Sm80: Bf16 "cvt.rn.bf16.f32" }
            /// Two numbers as 16 bits each, rounded to nearest.
            CvtRnX2 cvt_rn_x2(upper: f32, lower: f32) -> u32
                { 7.0 Sm80: F16 "cvt.rn.f16x2.f32", Bf16 "cvt.rn.bf16x2.f32" }
            /// `a * b + c` for both 16-bit numbers, each rounded once.
            FmaX2 fma_x2(a: u32, b: u32, c: u32) -> u32 { 6.0 Sm70: F16 "fma.rn.f16x2" }
            /// With 11 bits of significand, rounded to nearest, ties away from zero: the operand of a product in TF32.
            CvtRnaTf32 cvt_rna_tf32(a: T) -> u32 { 7.0 Sm80: f32 "cvt.rna.tf32.f32" }
            /// `a` of lane `b`, bit for bit; `c` limits the exchange (31: the whole warp), `members` are the
            /// participating lanes.
            ShflIdx shfl_idx(a: T, b: u32, c: u32, members: u32) -> T
                { 6.0 Sm70: f32 "shfl.sync.idx.b32", u32 "shfl.sync.idx.b32" }
            /// Waits until this many threads of the block, whole warps, have arrived at this barrier; all of them then
            /// see earlier writes of the others.
            BarSyncSome bar_sync_some(barrier: T, threads: u32) -> () { 6.0 Sm70: u32 "bar.sync" }
            /// Arrives at this barrier of this many threads of the block without waiting: threads that wait there see
            /// its earlier writes.
            BarArrive bar_arrive(barrier: T, threads: u32) -> () { 6.0 Sm70: u32 "bar.arrive" }
            /// Waits until these lanes of the warp have arrived; all of them then see earlier writes of the others.
            BarWarpSync bar_warp_sync(members: T) -> () { 6.0 Sm70: u32 "bar.warp.sync" }
            /// Executed by every thread of the cluster: arrives, and makes its writes visible to the others.
            BarrierClusterArrive barrier_cluster_arrive() -> () { 7.8 Sm90: u32 "barrier.cluster.arrive" }
            /// Waits until every thread of the cluster has arrived.
            BarrierClusterWait barrier_cluster_wait() -> () { 7.8 Sm90: u32 "barrier.cluster.wait" }
            /// The address in the shared memory of block `rank` of the cluster that corresponds to this block's
            /// `address`.
            Mapa mapa(address: T, rank: u32) -> T { 7.8 Sm90: u32 "mapa.shared::cluster.u32" }

            /// Loads four matrices of 8 by 8 16-bit numbers; lanes 8i to 8i + 7 give the addresses of the rows of
            /// matrix i, aligned to 16 bytes. Lane l gets from each matrix the elements 2 (l mod 4) and the next of row
            /// l / 4.
            LdmatrixX4 ldmatrix_x4(to: B32x4, from: SharedAt) -> ()
                { 6.5 Sm75: u32 "ldmatrix.sync.aligned.m8n8.x4.shared.b16" }
            /// [`Builder::ldmatrix_x4`] with transposed matrices.
            LdmatrixX4Trans ldmatrix_x4_trans(to: B32x4, from: SharedAt) -> ()
                { 6.5 Sm75: u32 "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" }
            /// The inverse of [`Builder::ldmatrix_x4`].
            StmatrixX4 stmatrix_x4(to: SharedAt, from: B32x4) -> ()
                { 7.8 Sm90: u32 "stmatrix.sync.aligned.m8n8.x4.shared.b16" }
            /// `d = a b + c` of a warp, 16 by 16 times 16 by 8. With g = lane / 4 and t = lane mod 4, `a` has rows g and
            /// g + 8 at k = 2t, then both at 2t + 8; `b` column g at 2t, then at 2t + 8; `c` and `d` columns 2t and 2t + 1
            /// of the row g, then of g + 8.
            MmaM16N8K16 mma_m16n8k16(d: F32x4, a: B32x4, b: B32x2, c: F32x4) -> () { 7.0 Sm80:
                F16 "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                Bf16 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" }
            /// `d = a b + c` of a warp in TF32, 16 by 8 times 8 by 8. `a` has rows g and g + 8 at k = t, then both at t
            /// + 4; `b` column g at t, then at t + 4; `c` and `d` as in [`Builder::mma_m16n8k16`].
            MmaM16N8K8 mma_m16n8k8(d: F32x4, a: B32x4, b: B32x2, c: F32x4) -> ()
                { 7.0 Sm80: f32 "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" }
            /// `d = a b + c` of a warp, 16 by 32 bytes times 32 by 8 signed bytes, which wraps around; `T` says whether
            /// bytes of `a` are signed. `a` has rows g and g + 8 at k = 4t, then both at 4t + 16; `b` column g at 4t,
            /// then at 4t + 16; `c` and `d` as in [`Builder::mma_m16n8k16`].
            MmaM16N8K32 mma_m16n8k32(d: S32x4, a: B32x4, b: B32x2, c: S32x4) -> () { 7.0 Sm80:
                u32 "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
                i32 "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" }
            /// The product of [`Builder::mma_m16n8k32`] for 16 by 16 times 16 by 8: `a` has rows g and g + 8 at k = 4t, `b` column g.
            MmaBytesM16N8K16 mma_bytes_m16n8k16(d: S32x4, a: B32x2, b: B32x1, c: S32x4) -> () { 7.0 Sm80:
                u32 "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32",
                i32 "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" }

            /// Starts copying 16 bytes, the first `present` of them from memory, the others zeros.
            CpAsync cp_async(to: SharedAt, from: GlobalAt, bytes: Sixteen, present: T) -> ()
                { 7.0 Sm80: u32 "cp.async.cg.shared.global" }
            /// The same for 4 bytes, all of them or none.
            CpAsyncWord cp_async_word(to: SharedAt, from: GlobalAt, bytes: Four, present: T) -> ()
                { 7.0 Sm80: u32 "cp.async.ca.shared.global" }
            /// Commits a group of the copies that this thread has started.
            CpAsyncCommitGroup cp_async_commit_group() -> () { 7.0 Sm80: u32 "cp.async.commit_group" }
            /// Waits until at most this many groups of this thread are in flight.
            CpAsyncWaitGroup cp_async_wait_group(pending: Groups) -> () { 7.0 Sm80: u32 "cp.async.wait_group" }

            /// Initialises a barrier in 8 bytes of shared memory for this many arrivals per phase.
            MbarrierInit mbarrier_init(at: SharedAt, arrivals: T) -> () { 7.0 Sm80: u32 "mbarrier.init.shared.b64" }
            /// Arrives once.
            MbarrierArrive mbarrier_arrive(at: SharedAt) -> () { 8.0 Sm80: u32 "mbarrier.arrive.shared::cta.b64 _," }
            /// Arrives once at a barrier of a block of the cluster. It does not release this thread's writes to the
            /// cluster, which would be expensive: it serves to signal that something was read.
            MbarrierArriveCluster mbarrier_arrive_cluster(at: ClusterAt) -> ()
                { 8.0 Sm90: u32 "mbarrier.arrive.shared::cluster.b64 _," }
            /// Arrives once, and makes the phase wait for this many bytes too.
            MbarrierArriveExpectTx mbarrier_arrive_expect_tx(at: SharedAt, bytes: T) -> ()
                { 8.0 Sm90: u32 "mbarrier.arrive.expect_tx.shared::cta.b64 _," }
            /// Whether the phase with this parity is complete; waits a limited time for it.
            MbarrierTryWaitParity mbarrier_try_wait_parity(at: SharedAt, parity: T) -> bool
                { 7.8 Sm90: u32 "mbarrier.try_wait.parity.shared::cta.b64" }
            /// The same for phases that count writes of other blocks of the cluster: it acquires them too.
            MbarrierTryWaitParityCluster mbarrier_try_wait_parity_cluster(at: SharedAt, parity: T) -> bool
                { 8.0 Sm90: u32 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64" }
            /// Starts a write to shared memory of a block of the cluster, whose barrier counts the bytes on arrival.
            StAsync st_async(to: ClusterAt, value: T, barrier: ClusterAt) -> () { 8.1 Sm90:
                f32 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32",
                u32 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32",
                f64 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64",
                u64 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64" }
            /// Makes barriers that this thread has initialised visible to the cluster and to copies.
            FenceMbarrierInit fence_mbarrier_init() -> () { 8.0 Sm90: u32 "fence.mbarrier_init.release.cluster" }
            /// Orders asynchronous copies and products after this thread's accesses to shared memory: they see its
            /// writes, and overwrite nothing that it still reads.
            FenceProxyAsync fence_proxy_async() -> () { 8.0 Sm90: u32 "fence.proxy.async.shared::cta" }

            /// Starts copying this many bytes to shared memory, a multiple of 16, between addresses that are multiples
            /// of 16; the barrier counts them.
            CpAsyncBulkLoad cp_async_bulk_load(to: SharedAt, from: GlobalAt, bytes: T, barrier: SharedAt) -> () { 8.0 Sm90:
                u32 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" }
            /// Starts copying a box of a tensor to shared memory, with zeros outside of the tensor; the barrier counts
            /// bytes.
            CpAsyncBulkTensorLoad cp_async_bulk_tensor_load(to: SharedAt, from: TensorAt, barrier: SharedAt) -> () { 8.0 Sm90:
                u32 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" }
            /// The same to the same address in every block of the cluster in `blocks`, whose barrier there counts.
            CpAsyncBulkTensorMulticast cp_async_bulk_tensor_multicast(
                to: SharedAt, from: TensorAt, barrier: SharedAt, blocks: Blocks) -> () { 8.0 Sm90a:
                u32 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster" }
            /// Starts copying shared memory to a box of a tensor, clipped to the tensor.
            CpAsyncBulkTensorStore cp_async_bulk_tensor_store(to: TensorAt, from: SharedAt) -> ()
                { 8.0 Sm90: u32 "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group" }
            /// Commits a group of the stores that this thread has started.
            CpAsyncBulkCommitGroup cp_async_bulk_commit_group() -> () { 8.0 Sm90: u32 "cp.async.bulk.commit_group" }
            /// Waits until at most this many groups of this thread still read shared memory.
            CpAsyncBulkWaitGroupRead cp_async_bulk_wait_group_read(pending: Groups) -> ()
                { 8.0 Sm90: u32 "cp.async.bulk.wait_group.read" }
            /// Allows dependent launches to begin as soon as every block of this launch has executed this or has ended.
            /// They see the writes of this launch only after they have waited.
            GriddepcontrolLaunchDependents griddepcontrol_launch_dependents() -> ()
                { 7.8 Sm90: u32 "griddepcontrol.launch_dependents" }
            /// Waits until the preceding launches have ended, and makes their writes visible. No effect if this launch
            /// was ordered after them.
            GriddepcontrolWait griddepcontrol_wait() -> () { 7.8 Sm90: u32 "griddepcontrol.wait" }

            /// Prefetches a tensor map.
            PrefetchTensormap prefetch_tensormap(map: MapAt) -> () { 8.0 Sm90: u32 "prefetch.tensormap" }

            /// Releases registers of each thread of the warp group, down to this many.
            SetmaxnregDec setmaxnreg_dec(registers: RegisterCount) -> ()
                { 8.0 Sm90a: u32 "setmaxnreg.dec.sync.aligned.u32" }
            /// Acquires registers for each thread of the warp group, up to this many; waits until others have released
            /// theirs.
            SetmaxnregInc setmaxnreg_inc(registers: RegisterCount) -> ()
                { 8.0 Sm90a: u32 "setmaxnreg.inc.sync.aligned.u32" }
            /// Orders register writes of this thread before the products that it starts next.
            WgmmaFence wgmma_fence() -> () { 8.0 Sm90a: u32 "wgmma.fence.sync.aligned" }
            /// Commits a group of the products that this thread has started.
            WgmmaCommitGroup wgmma_commit_group() -> () { 8.0 Sm90a: u32 "wgmma.commit_group.sync.aligned" }
            /// Waits until at most this many groups of this thread are in flight.
            WgmmaWaitGroup wgmma_wait_group(pending: Groups) -> () { 8.0 Sm90a: u32 "wgmma.wait_group.sync.aligned" }
            /// Starts `d = a b + d` of a warp group, 64 by 16 times 16 by 16, both operands in shared memory; `d = a b`
            /// if `adds` is false. An operand is negated if its sign says so and transposed if its flag is set.
            WgmmaN16 wgmma_n16(d: F32x8, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with 32 columns.
            WgmmaN32 wgmma_n32(d: F32x16, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with 64 columns.
            WgmmaN64 wgmma_n64(d: F32x32, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with 128 columns.
            WgmmaN128 wgmma_n128(d: F32x64, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with 176 columns.
            WgmmaN176 wgmma_n176(d: F32x88, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n176k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with 256 columns.
            WgmmaN256 wgmma_n256(d: F32x128, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign, across_a: Flag,
                across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_n16`] with `a` in registers: each warp has 16 of its rows, in the layout of
            /// [`Builder::mma_m16n8k16`].
            WgmmaOfRegistersN16 wgmma_of_registers_n16(d: F32x8, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n16`] with 32 columns.
            WgmmaOfRegistersN32 wgmma_of_registers_n32(d: F32x16, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n16`] with 64 columns.
            WgmmaOfRegistersN64 wgmma_of_registers_n64(d: F32x32, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n16`] with 128 columns.
            WgmmaOfRegistersN128 wgmma_of_registers_n128(d: F32x64, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n16`] with 256 columns.
            WgmmaOfRegistersN256 wgmma_of_registers_n256(d: F32x128, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" }
            /// Starts `d = a b + d` in TF32, 64 by 8 times 8 by 64; both operands have k innermost, and the upper 19
            /// bits of their numbers are used.
            WgmmaTf32N64 wgmma_tf32_n64(d: F32x32, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign) -> ()
                { 8.0 Sm90a: f32 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32" }
            /// [`Builder::wgmma_tf32_n64`] with 128 columns.
            WgmmaTf32N128 wgmma_tf32_n128(d: F32x64, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign) -> ()
                { 8.0 Sm90a: f32 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32" }
            /// [`Builder::wgmma_tf32_n64`] with 256 columns.
            WgmmaTf32N256 wgmma_tf32_n256(d: F32x128, a: u64, b: u64, adds: bool, sign_a: Sign, sign_b: Sign) -> ()
                { 8.0 Sm90a: f32 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32" }
            }
        }
    };
}

/// The table of special registers; calls `$callback!` with its rows: method and register.
#[macro_export]
macro_rules! special_register_table {
    ($callback:path) => {
        $callback! {
            /// Position of the thread in its block, x.
            tid_x "%tid.x"
            /// Position of the thread in its block, y.
            tid_y "%tid.y"
            /// Position of the block in the grid, x.
            ctaid_x "%ctaid.x"
            /// Position of the block in the grid, y.
            ctaid_y "%ctaid.y"
            /// Position of the block in the grid, z.
            ctaid_z "%ctaid.z"
            /// Blocks of the grid, x.
            nctaid_x "%nctaid.x"
            /// Blocks of the grid, y.
            nctaid_y "%nctaid.y"
            /// Position of the block in its cluster.
            cluster_ctarank "%cluster_ctarank"
        }
    };
}

macro_rules! define {
    ({ $($scalar:tt)* } { $($special:tt)* }) => { define!(@rows $($scalar)* $($special)*); };
    (@rows $($(#[doc = $doc:literal])* $family:ident $method:ident ($($x:ident: $operand:ident),*) -> $result:tt
        { $($version:literal $target:ident: $($ty:ident $name:literal),*);* })*) => {
        $(
            #[doc = concat!("The types of [`Builder::", stringify!($method), "`].")]
            pub trait $family: Scalar {
                #[doc(hidden)]
                const ROW: Row;
            }
            $($(impl $family for $ty {
                const ROW: Row =
                    Row { name: concat!("\t", $name, " "), gate: Gate::new($version, Target::$target) };
            })*)*
        )*

        /// The instructions, named as in the PTX ISA, without the parts that follow from their operands.
        impl Builder {
            $(
                $(#[doc = $doc])*
                #[doc = ""]
                #[doc = concat!($($("`", $name, "`, ",)* "PTX ", stringify!($version), ", `", stringify!($target), "`",)*)]
                pub fn $method<T: $family>(&self, $($x: impl Operand<$operand>),*) -> define!(@type $result) {
                    define!(@body $result, self, const { T::ROW }, $($x),*)
                }
            )*
        }
    };
    (@type ()) => { () };
    (@type $result:ident) => { Value<'_, $result> };
    (@body (), $self:ident, $row:expr,) => { $self.instruction($row, |_| {}) };
    (@body (), $self:ident, $row:expr, $first:ident $(, $x:ident)*) => {
        $self.instruction($row, |line| {
            $first.write(line);
            $(line.put(", ");
            $x.write(line);)*
        })
    };
    (@body $result:ident, $self:ident, $row:expr, $($x:ident),*) => {{
        let value = $self.fresh::<$result>();
        $self.instruction($row, |line| {
            value.write(line);
            $(line.put(", ");
            $x.write(line);)*
        });
        value
    }};
}
instruction_table!(define);

macro_rules! define_special {
    ($($(#[doc = $doc:literal])* $method:ident $name:literal)*) => {
        /// The thread's own position.
        impl Builder {
            $($(#[doc = $doc])*
            pub fn $method(&self) -> Value<'_, u32> {
                self.special($name)
            })*
        }
    };
}
special_register_table!(define_special);

macro_rules! operators {
    ($($operator:ident $function:ident $family:ident $method:ident $(or $by_power_of_two:ident)?: $($constant:ty),*;)*) => {
        $(
            impl<'k, T: $family, B: Operand<T>> std::ops::$operator<B> for Value<'k, T> {
                type Output = Value<'k, T>;
                #[inline]
                fn $function(self, other: B) -> Value<'k, T> {
                    $(if let Some(exponent) = other.power_of_two() {
                        return $by_power_of_two(self, exponent);
                    })?
                    self.builder.$method(self, other)
                }
            }
            $(impl<'k> std::ops::$operator<Value<'k, $constant>> for $constant {
                type Output = Value<'k, $constant>;
                #[inline]
                fn $function(self, other: Value<'k, $constant>) -> Value<'k, $constant> {
                    other.builder.$method(self, other)
                }
            })*
        )*
    };
}
// The assembler divides by a constant like by any other number, in some fifteen instructions.

/// `a / 2ⁿ`, for unsigned integers.
fn quotient<T: Scalar>(a: Value<'_, T>, n: u32) -> Value<'_, T> {
    let row = if T::TYPE == PtxType::U64 { <u64 as Shr>::ROW } else { <u32 as Shr>::ROW };
    with_constant(row, a, |line| Operand::<u32>::write(n, line))
}

/// `a % 2ⁿ`, for unsigned integers.
fn remainder<T: Scalar>(a: Value<'_, T>, n: u32) -> Value<'_, T> {
    let row = if T::TYPE == PtxType::U64 { <u64 as And>::ROW } else { <u32 as And>::ROW };
    with_constant(row, a, |line| line.constant(T::TYPE, (1u64 << n) - 1))
}

fn with_constant<'k, T: Scalar>(row: Row, a: Value<'k, T>, constant: impl FnOnce(&mut Line<'_>)) -> Value<'k, T> {
    let value = a.builder.fresh::<T>();
    a.builder.instruction(row, |line| {
        value.write(line);
        line.put(", ");
        a.write(line);
        line.put(", ");
        constant(line);
    });
    value
}

operators! {
    Add add Add add: f32, f64, u32, i32, u64;
    Sub sub Sub sub: f32, f64, u32, i32, u64;
    Mul mul Mul mul: f32, f64, u32, i32, u64;
    Div div Div div or quotient: f32, f64, u32, i32, u64;
    Rem rem Rem rem or remainder: u32, i32, u64;
    BitAnd bitand And and: u32, u64;
    BitOr bitor Or or: u32, u64;
    BitXor bitxor Xor xor: u32, u64;
}

macro_rules! unary_operators {
    ($($operator:ident $function:ident $family:ident $method:ident;)*) => {
        $(impl<'k, T: $family> std::ops::$operator for Value<'k, T> {
            type Output = Value<'k, T>;
            #[inline]
            fn $function(self) -> Value<'k, T> {
                self.builder.$method(self)
            }
        })*
    };
}
unary_operators! {
    Neg neg Neg neg;
    Not not Not not;
}

impl<'k, T: Shl, B: Operand<u32>> std::ops::Shl<B> for Value<'k, T> {
    type Output = Value<'k, T>;
    fn shl(self, places: B) -> Value<'k, T> {
        self.builder.shl(self, places)
    }
}

impl<'k, T: Shr, B: Operand<u32>> std::ops::Shr<B> for Value<'k, T> {
    type Output = Value<'k, T>;
    fn shr(self, places: B) -> Value<'k, T> {
        self.builder.shr(self, places)
    }
}
