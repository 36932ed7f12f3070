// Two matrix products in one launch where one round of tiles does for both: out[m, n] = x[m, k] @ w[k, n], twice.
//
// A multiprocessor computes one tile of ROWS rows by 192 columns, as large as its registers hold. Its columns
// are the matrix unit's 64-wide side and its rows the other one, which takes any multiple of 8: 448 rows are
// two tiles of 224 without waste.
//
// Compiled at run time with ROWS, TRANS_B (weights stored [n, k]) and KIND ("bf16" or "f16"), and with
// multiply(), whose operand list depends on ROWS.

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map {
    u64 words[16];
};

constexpr int GROUPS = 3, DEPTH = 64, STAGES = 4, AHEAD = STAGES - 1, HALF = ROWS / 2;
constexpr u32 W_BYTES = 64 * DEPTH * 2, X_BYTES = ROWS * DEPTH * 2;
constexpr u32 STAGE_BYTES = GROUPS * W_BYTES + X_BYTES;

__device__ void multiply(float *total, u64 w, u64 x);

__device__ inline void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier), "r"(parity)
        : "memory");
}

__device__ inline void load(u32 to, const Map &map, int inner, int outer, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// The same for what is read once: it makes room in the L2 cache first.
__device__ inline void load_once(u32 to, const Map &map, int inner, int outer, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map), "r"(inner), "r"(outer), "r"(barrier), "l"(policy)
        : "memory");
}

// What the matrix unit wants to know of a tile with rows of 128 swizzled bytes.
__device__ inline u64 described(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | ((u64)0x40000040 << 32);
}

__device__ inline u32 packed(float low, float high) {
    u32 both;
    asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// tiles0: tiles of the first product, the others belong to the second; high: tiles one below the other.
extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1)
    dual_gemm_wave(const __grid_constant__ Map x0, const __grid_constant__ Map w0,
                   const __grid_constant__ Map o0, const __grid_constant__ Map x1,
                   const __grid_constant__ Map w1, const __grid_constant__ Map o1, int tiles0, int high0,
                   int steps0, int high1, int steps1) {
    extern __shared__ unsigned char memory[];
    const u32 w_at = ((u32)__cvta_generic_to_shared(memory) + 1023) & ~1023u;
    const u32 x_at = w_at + STAGES * GROUPS * W_BYTES, ready = x_at + STAGES * X_BYTES;
    const u32 empty = ready + 8 * STAGES;
    const bool first = (int)blockIdx.x < tiles0;
    const int tile = blockIdx.x - (first ? 0 : tiles0);
    const Map &x = first ? x0 : x1, &w = first ? w0 : w1, &o = first ? o0 : o1;
    const int high = first ? high0 : high1, steps = first ? steps0 : steps1;
    const int row = tile % high * ROWS, column = tile / high * 64 * GROUPS;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;

    u64 once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    auto fetch = [&](int step) {
        const int stage = step % STAGES, down = step * DEPTH;
        const u32 barrier = ready + 8 * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(STAGE_BYTES)
                     : "memory");
        load(x_at + stage * X_BYTES, x, down, row, barrier);
        for (int g = 0; g < GROUPS; g++) {
            const int across = column + 64 * g;
            load_once(w_at + (g * STAGES + stage) * W_BYTES, w, TRANS_B ? down : across, TRANS_B ? across : down,
                      barrier, once);
        }
    };
    // One thread loads for all.
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ready + 8 * i));
            // Every warp reports that it has read a stage.
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * i), "r"(4 * GROUPS));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int step = 0; step < AHEAD && step < steps; step++) fetch(step);
    }
    __syncthreads();

    float total[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) total[i] = 0;
    const u32 mine = w_at + group * STAGES * W_BYTES;
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        wait(ready + 8 * stage, step / STAGES & 1);
        const u64 left = described(mine + stage * W_BYTES), right = described(x_at + stage * X_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) multiply(total, left + k * (TRANS_B ? 2 : 128), right + 2 * k);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        // The step before is done now. Its stage takes the one that is AHEAD of this.
        const int before = step - 1;
        if (lane == 0 && before >= 0) {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * (before % STAGES))
                         : "memory");
        }
        if (threadIdx.x == 0 && step + AHEAD < steps) {
            if (before >= 0) wait(empty + 8 * (before % STAGES), before / STAGES & 1);
            fetch(step + AHEAD);
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(total[i])::"memory");

    // The output leaves through the group's own buffers of w, which no other group reads: rows of 128 bytes,
    // 8 x 8 pieces transposed on the way. One half is on its way while the other is being written.
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    const int piece = lane / 8, chunk = 2 * warp + piece % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = half * (HALF / 8); j < (half + 1) * (HALF / 8); j += 2) {
            const int n = 8 * (j + piece / 2) + lane % 8;
            const float *d = total + 4 * j;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             mine + n * 128 + ((chunk ^ (n % 8)) << 4)),
                         "r"(packed(d[0], d[1])), "r"(packed(d[2], d[3])), "r"(packed(d[4], d[5])),
                         "r"(packed(d[6], d[7]))
                         : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, 128;" ::"r"(group + 1) : "memory");
        if (warp == 0 && lane == 0) {
            asm volatile(
                "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                "cp.async.bulk.commit_group;" ::"l"(&o),
                "r"(column + 64 * group), "r"(row + half * HALF), "r"(mine + half * HALF * 128)
                : "memory");
        }
    }
    if (warp == 0 && lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
