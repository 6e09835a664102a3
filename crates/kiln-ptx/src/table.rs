//! The instructions of PTX that kernels are written in: one table, from which come the methods of the builder, their
//! documentation, what they ask of version and target, and the tests.

use crate::builder::operands::*;
use crate::text::Line;
use crate::types::{Bf16, F16, Operand, PtxType, Scalar, Value};
use crate::{Builder, Gate, Target};

/// The table of instructions; calls `$callback!` with its rows.
///
/// A row is: the trait of the types that the instruction exists for, the method, its operands, its result or `()`, and for
/// each least version of PTX and least target the types with the name of the instruction; `T` is replaced by the type.
/// The rows come in two sections: those of a thread alone, whose operands are scalars, and those that threads run together
/// or whose operands are addresses, constants and lists of registers.
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
            /// `a / b`; rounded to nearest, or towards zero. What an integer divided by zero gives is not defined.
            Div div(a: T, b: T) -> T
                { 6.0 Sm70: f32 "div.rn.f32", f64 "div.rn.f64", u32 "div.u32", i32 "div.s32", u64 "div.u64" }
            /// The remainder of `a / b`, with the sign of `a`. What a division by zero gives is not defined.
            Rem rem(a: T, b: T) -> T { 6.0 Sm70: u32 "rem.u32", i32 "rem.s32", u64 "rem.u64" }
            /// `-a`
            Neg neg(a: T) -> T { 6.0 Sm70: f32 "neg.f32", f64 "neg.f64", i32 "neg.s32" }
            /// `|a|`
            Abs abs(a: T) -> T { 6.0 Sm70: f32 "abs.f32", f64 "abs.f64", i32 "abs.s32" }
            /// The lesser; of a number and NaN the number; -0 is less than +0.
            Min min(a: T, b: T) -> T
                { 6.0 Sm70: f32 "min.f32", f64 "min.f64", u32 "min.u32", i32 "min.s32", u64 "min.u64" }
            /// The greater; of a number and NaN the number; -0 is less than +0.
            Max max(a: T, b: T) -> T
                { 6.0 Sm70: f32 "max.f32", f64 "max.f64", u32 "max.u32", i32 "max.s32", u64 "max.u64" }
            /// The lesser, NaN if either is; -0 is less than +0.
            MinNan min_nan(a: T, b: T) -> T { 7.0 Sm80: f32 "min.NaN.f32" }
            /// The greater, NaN if either is; -0 is less than +0.
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
            /// Four bytes of `b` above `a`: each digit of 4 bits of `c`, the lowest first, is the number of one, counted from the
            /// lowest.
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
            /// `a != b`; false where either is NaN.
            Ne ne(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.ne.f32", f64 "setp.ne.f64", u32 "setp.ne.u32", i32 "setp.ne.s32", u64 "setp.ne.u64" }
            /// Whether either is NaN.
            Nan nan(a: T, b: T) -> bool { 6.0 Sm70: f32 "setp.nan.f32", f64 "setp.nan.f64" }
            /// `a` where `c`, else `b`.
            Selp selp(a: T, b: T, c: bool) -> T { 6.0 Sm70:
                f32 "selp.f32", f64 "selp.f64", u32 "selp.u32", i32 "selp.s32", u64 "selp.u64" }
            /// As `u32`: the lower half.
            CvtU32 cvt_u32(a: T) -> u32 { 6.0 Sm70: u64 "cvt.u32.u64" }
            /// As `u64`, exactly.
            CvtU64 cvt_u64(a: T) -> u64 { 6.0 Sm70: u32 "cvt.u64.u32" }
            /// The nearest integer, of two the even one; NaN gives 0, what is beyond gives the end of the range.
            CvtRniS32 cvt_rni_s32(a: T) -> i32 { 6.0 Sm70: f32 "cvt.rni.s32.f32" }
            /// The nearest integer, of two the even one; zeros have the sign of `a`.
            CvtRni cvt_rni(a: T) -> T { 6.0 Sm70: f32 "cvt.rni.f32.f32" }
            /// The integer towards zero; zeros have the sign of `a`.
            CvtRzi cvt_rzi(a: T) -> T { 6.0 Sm70: f32 "cvt.rzi.f32.f32" }
            /// The greatest integer not above `a`; zeros have the sign of `a`.
            CvtRmi cvt_rmi(a: T) -> T { 6.0 Sm70: f32 "cvt.rmi.f32.f32" }
            /// The least integer not below `a`; zeros have the sign of `a`.
            CvtRpi cvt_rpi(a: T) -> T { 6.0 Sm70: f32 "cvt.rpi.f32.f32" }
            /// The integer towards zero; NaN gives 0, what is beyond gives the end of the range.
            CvtRziS32 cvt_rzi_s32(a: T) -> i32 { 6.0 Sm70: f32 "cvt.rzi.s32.f32" }
            /// The integer towards zero; NaN gives 0, what is beyond gives the end of the range.
            CvtRziU32 cvt_rzi_u32(a: T) -> u32 { 6.0 Sm70: f32 "cvt.rzi.u32.f32" }
            /// As `f32`, rounded to nearest.
            CvtRnF32 cvt_rn_f32(a: T) -> f32
                { 6.0 Sm70: u32 "cvt.rn.f32.u32", i32 "cvt.rn.f32.s32", f64 "cvt.rn.f32.f64" }
            /// As `f64`, rounded to nearest.
            CvtRnF64 cvt_rn_f64(a: T) -> f64 { 6.0 Sm70: u32 "cvt.rn.f64.u32", u64 "cvt.rn.f64.u64" }
            /// As `f64`, exactly.
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
            /// `a` of the lane whose number differs from this one's by `b`, bit for bit; `c` bounds the exchange (31: the
            /// whole warp), `members` are the lanes that take part.
            ShflBfly shfl_bfly(a: T, b: u32, c: u32, members: u32) -> T
                { 6.0 Sm70: f32 "shfl.sync.bfly.b32", u32 "shfl.sync.bfly.b32" }
            /// Waits until every thread of the block has come here; what they wrote before is then seen by all.
            BarSync bar_sync(barrier: T) -> () { 6.0 Sm70: u32 "bar.sync" }
            }
            {
            /// As `f32`, exactly.
            CvtF32 cvt_f32(a: T) -> f32 { 6.0 Sm70: F16 "cvt.f32.f16"; 7.1 Sm80: Bf16 "cvt.f32.bf16" }
            /// `2ᵃ` within two units in the last place; subnormal numbers count as zeros, before and after.
            Ex2 ex2(a: T) -> T { 6.0 Sm70: f32 "ex2.approx.ftz.f32" }
            /// `1 / a` within a unit in the last place; subnormal numbers count as zeros, before and after.
            RcpApprox rcp_approx(a: T) -> T { 6.0 Sm70: f32 "rcp.approx.ftz.f32" }
            /// In 16 bits, rounded to nearest.
            CvtRn cvt_rn(a: f32) -> T { 6.0 Sm70: F16 "cvt.rn.f16.f32"; 7.0 Sm80: Bf16 "cvt.rn.bf16.f32" }
            /// Two numbers in 16 bits each, rounded to nearest.
            CvtRnX2 cvt_rn_x2(upper: f32, lower: f32) -> u32
                { 7.0 Sm80: F16 "cvt.rn.f16x2.f32", Bf16 "cvt.rn.bf16x2.f32" }
            /// `a * b + c` of both numbers of 16 bits, rounded once each.
            FmaX2 fma_x2(a: u32, b: u32, c: u32) -> u32 { 6.0 Sm70: F16 "fma.rn.f16x2" }
            /// With 11 bits of significand, rounded to nearest, ties away from zero: the operand of a product in TF32.
            CvtRnaTf32 cvt_rna_tf32(a: T) -> u32 { 7.0 Sm80: f32 "cvt.rna.tf32.f32" }
            /// `a` of lane `b`, bit for bit; `c` bounds the exchange (31: the whole warp), `members` are the lanes that
            /// take part.
            ShflIdx shfl_idx(a: T, b: u32, c: u32, members: u32) -> T
                { 6.0 Sm70: f32 "shfl.sync.idx.b32", u32 "shfl.sync.idx.b32" }
            /// Waits until this many threads of the block, whole warps, have come to this barrier; what they wrote before is
            /// then seen by all of them.
            BarSyncSome bar_sync_some(barrier: T, threads: u32) -> () { 6.0 Sm70: u32 "bar.sync" }
            /// Comes to this barrier, which this many threads of the block have to, and goes on: what it wrote before is seen by
            /// those who wait there.
            BarArrive bar_arrive(barrier: T, threads: u32) -> () { 6.0 Sm70: u32 "bar.arrive" }
            /// Waits until these lanes of the warp have come here; what they wrote before is then seen by all of them.
            BarWarpSync bar_warp_sync(members: T) -> () { 6.0 Sm70: u32 "bar.warp.sync" }
            /// Of every thread of the cluster: says that it has come here, and lets the others see what it wrote.
            BarrierClusterArrive barrier_cluster_arrive() -> () { 7.8 Sm90: u32 "barrier.cluster.arrive" }
            /// Waits until every thread of the cluster has arrived.
            BarrierClusterWait barrier_cluster_wait() -> () { 7.8 Sm90: u32 "barrier.cluster.wait" }
            /// The address in the shared memory of the block `rank` of the cluster that has this one's `address`.
            Mapa mapa(address: T, rank: u32) -> T { 7.8 Sm90: u32 "mapa.shared::cluster.u32" }

            /// Four matrices of 8 by 8 numbers of 16 bits; lanes 8i to 8i + 7 say where the rows of the matrix i are, aligned
            /// to 16 bytes. Lane l gets of each the elements 2 (l mod 4) and the next of the row l / 4.
            LdmatrixX4 ldmatrix_x4(to: B32x4, from: SharedAt) -> ()
                { 6.5 Sm75: u32 "ldmatrix.sync.aligned.m8n8.x4.shared.b16" }
            /// [`Builder::ldmatrix_x4`] of the transposed matrices.
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
            /// `d = a b + c` of a warp in TF32, 16 by 8 times 8 by 8. `a` has rows g and g + 8 at k = t, then both at
            /// t + 4; `b` column g at t, then at t + 4; `c` and `d` as [`Builder::mma_m16n8k16`].
            MmaM16N8K8 mma_m16n8k8(d: F32x4, a: B32x4, b: B32x2, c: F32x4) -> ()
                { 7.0 Sm80: f32 "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" }
            /// `d = a b + c` of a warp, 16 by 32 bytes times 32 by 8 signed bytes, which wraps around; `T` says whether bytes
            /// of `a` have a sign. `a` has rows g and g + 8 at k = 4t, then both at 4t + 16; `b` column g at 4t, then at
            /// 4t + 16; `c` and `d` as [`Builder::mma_m16n8k16`].
            MmaM16N8K32 mma_m16n8k32(d: S32x4, a: B32x4, b: B32x2, c: S32x4) -> () { 7.0 Sm80:
                u32 "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
                i32 "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" }
            /// The product of [`Builder::mma_m16n8k32`] for 16 by 16 times 16 by 8: `a` has rows g and g + 8 at k = 4t, `b` column g.
            MmaBytesM16N8K16 mma_bytes_m16n8k16(d: S32x4, a: B32x2, b: B32x1, c: S32x4) -> () { 7.0 Sm80:
                u32 "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32",
                i32 "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" }

            /// Begins to copy 16 bytes, the first `present` of them from memory, the others zeros.
            CpAsync cp_async(to: SharedAt, from: GlobalAt, bytes: Sixteen, present: T) -> ()
                { 7.0 Sm80: u32 "cp.async.cg.shared.global" }
            /// The same of 4 bytes, of all of them or of none.
            CpAsyncWord cp_async_word(to: SharedAt, from: GlobalAt, bytes: Four, present: T) -> ()
                { 7.0 Sm80: u32 "cp.async.ca.shared.global" }
            /// Makes a group of the copies that this thread has begun.
            CpAsyncCommitGroup cp_async_commit_group() -> () { 7.0 Sm80: u32 "cp.async.commit_group" }
            /// Waits until no more than this many groups of this thread are under way.
            CpAsyncWaitGroup cp_async_wait_group(pending: Groups) -> () { 7.0 Sm80: u32 "cp.async.wait_group" }

            /// A barrier in 8 bytes of shared memory, for this many arrivals a phase.
            MbarrierInit mbarrier_init(at: SharedAt, arrivals: T) -> () { 7.0 Sm80: u32 "mbarrier.init.shared.b64" }
            /// Arrives, once.
            MbarrierArrive mbarrier_arrive(at: SharedAt) -> () { 8.0 Sm80: u32 "mbarrier.arrive.shared::cta.b64 _," }
            /// Arrives, once, at a barrier of a block of the cluster. What this thread has written is not released to the
            /// cluster, a costly thing: this is for telling that something was read.
            MbarrierArriveCluster mbarrier_arrive_cluster(at: ClusterAt) -> ()
                { 8.0 Sm90: u32 "mbarrier.arrive.shared::cluster.b64 _," }
            /// Arrives, once, and has the phase wait for this many bytes too.
            MbarrierArriveExpectTx mbarrier_arrive_expect_tx(at: SharedAt, bytes: T) -> ()
                { 8.0 Sm90: u32 "mbarrier.arrive.expect_tx.shared::cta.b64 _," }
            /// Whether the phase of this parity is over; waits a while for it.
            MbarrierTryWaitParity mbarrier_try_wait_parity(at: SharedAt, parity: T) -> bool
                { 7.8 Sm90: u32 "mbarrier.try_wait.parity.shared::cta.b64" }
            /// The same where the phase counts what other blocks of the cluster write: it acquires from them, too.
            MbarrierTryWaitParityCluster mbarrier_try_wait_parity_cluster(at: SharedAt, parity: T) -> bool
                { 8.0 Sm90: u32 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64" }
            /// Begins to write to shared memory of a block of the cluster, whose barrier counts the bytes when they are there.
            StAsync st_async(to: ClusterAt, value: T, barrier: ClusterAt) -> () { 8.1 Sm90:
                f32 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32",
                f64 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64",
                u64 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64" }
            /// Lets the cluster and copies see barriers that this thread has initialised.
            FenceMbarrierInit fence_mbarrier_init() -> () { 8.0 Sm90: u32 "fence.mbarrier_init.release.cluster" }
            /// Keeps copies and products that run by themselves behind what this thread has done to shared memory: they see what
            /// it has written, and write over nothing that it still reads.
            FenceProxyAsync fence_proxy_async() -> () { 8.0 Sm90: u32 "fence.proxy.async.shared::cta" }

            /// Begins to copy this many bytes to shared memory, a multiple of 16, from and to multiples of 16; the barrier counts them.
            CpAsyncBulkLoad cp_async_bulk_load(to: SharedAt, from: GlobalAt, bytes: T, barrier: SharedAt) -> () { 8.0 Sm90:
                u32 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" }
            /// Begins to copy a box of a tensor to shared memory, zeros where the tensor is not; the barrier counts bytes.
            CpAsyncBulkTensorLoad cp_async_bulk_tensor_load(to: SharedAt, from: TensorAt, barrier: SharedAt) -> () { 8.0 Sm90:
                u32 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" }
            /// The same to the same place of every block of the cluster in `blocks`, whose barrier there counts.
            CpAsyncBulkTensorMulticast cp_async_bulk_tensor_multicast(
                to: SharedAt, from: TensorAt, barrier: SharedAt, blocks: Blocks) -> () { 8.0 Sm90a:
                u32 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster" }
            /// Begins to copy shared memory to a box of a tensor, as far as that is in the tensor.
            CpAsyncBulkTensorStore cp_async_bulk_tensor_store(to: TensorAt, from: SharedAt) -> ()
                { 8.0 Sm90: u32 "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group" }
            /// Makes a group of the stores that this thread has begun.
            CpAsyncBulkCommitGroup cp_async_bulk_commit_group() -> () { 8.0 Sm90: u32 "cp.async.bulk.commit_group" }
            /// Waits until no more than this many groups of this thread still read shared memory.
            CpAsyncBulkWaitGroupRead cp_async_bulk_wait_group_read(pending: Groups) -> ()
                { 8.0 Sm90: u32 "cp.async.bulk.wait_group.read" }
            /// Lets launches behind this one begin, those that wait for it by themselves: once every block of this one has said
            /// so or has ended. What this one writes they see only where they have waited.
            GriddepcontrolLaunchDependents griddepcontrol_launch_dependents() -> ()
                { 7.8 Sm90: u32 "griddepcontrol.launch_dependents" }
            /// Waits until the launches in front of this one have ended, and sees what they wrote. Nothing where it was launched
            /// to begin behind them.
            GriddepcontrolWait griddepcontrol_wait() -> () { 7.8 Sm90: u32 "griddepcontrol.wait" }

            /// Brings the description of a tensor near.
            PrefetchTensormap prefetch_tensormap(map: MapAt) -> () { 8.0 Sm90: u32 "prefetch.tensormap" }

            /// Gives registers of each thread of the warp group back, down to this many.
            SetmaxnregDec setmaxnreg_dec(registers: RegisterCount) -> ()
                { 8.0 Sm90a: u32 "setmaxnreg.dec.sync.aligned.u32" }
            /// Takes registers for each thread of the warp group, up to this many; waits for others to give theirs back.
            SetmaxnregInc setmaxnreg_inc(registers: RegisterCount) -> ()
                { 8.0 Sm90a: u32 "setmaxnreg.inc.sync.aligned.u32" }
            /// Orders registers that this thread has written before the products that it begins next.
            WgmmaFence wgmma_fence() -> () { 8.0 Sm90a: u32 "wgmma.fence.sync.aligned" }
            /// Makes a group of the products that this thread has begun.
            WgmmaCommitGroup wgmma_commit_group() -> () { 8.0 Sm90a: u32 "wgmma.commit_group.sync.aligned" }
            /// Waits until no more than this many groups of this thread are under way.
            WgmmaWaitGroup wgmma_wait_group(pending: Groups) -> () { 8.0 Sm90a: u32 "wgmma.wait_group.sync.aligned" }
            /// Begins `d = a b + d` of a warp group, 64 by 16 times 16 by 16, both operands in shared memory; `d = a b` where
            /// `adds` is false. An operand is negated where its sign says so and transposed where its flag is set.
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
            /// [`Builder::wgmma_n64`] with `a` in registers: each warp has 16 of its rows, as [`Builder::mma_m16n8k16`] takes
            /// them.
            WgmmaOfRegistersN64 wgmma_of_registers_n64(d: F32x32, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n64`] with 128 columns.
            WgmmaOfRegistersN128 wgmma_of_registers_n128(d: F32x64, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" }
            /// [`Builder::wgmma_of_registers_n64`] with 256 columns.
            WgmmaOfRegistersN256 wgmma_of_registers_n256(d: F32x128, a: B32x4, b: u64, adds: bool, sign_a: Sign,
                sign_b: Sign, across_b: Flag) -> () { 8.0 Sm90a:
                F16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16",
                Bf16 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" }
            /// Begins `d = a b + d` in TF32, 64 by 8 times 8 by 64; both operands lie with k innermost, and of their numbers
            /// the upper 19 bits are read.
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

/// One instruction for one type.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Row {
    /// Its name, between a tab and a blank.
    pub(crate) name: &'static str,
    pub(crate) gate: Gate,
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

        /// The instructions, named as in the PTX ISA, without what their operands say.
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
        /// What a thread knows of itself.
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
// The assembler divides by a constant as by any other number, in some fifteen instructions.

/// `a / 2ⁿ`, for integers without a sign.
fn quotient<T: Scalar>(a: Value<'_, T>, n: u32) -> Value<'_, T> {
    let row = if T::TYPE == PtxType::U64 { <u64 as Shr>::ROW } else { <u32 as Shr>::ROW };
    with_constant(row, a, |line| Operand::<u32>::write(n, line))
}

/// `a % 2ⁿ`, for integers without a sign.
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
