//! MIG-switchable GPUs, which are in GRES `gpu` and in GRES `gpuos`: what is taken of one by jobs of the other.

use gpuos_config::gpuos_toml::{MigBoard, MigPool};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::GpuSet;

/// Numbers in GRES `gpu` of the MIG-switchable GPUs of which these are memory slices, as bits of GRES `gpuos`.
pub fn whole_of((pool, board): (&MigPool, &MigBoard), slices: GpuSet) -> GpuSet {
    let cut = switchable(pool, board).filter(|(_, bits)| bits & slices.0 != 0);
    cut.fold(GpuSet::EMPTY, |set, (number, _)| set.with(number.index()))
}

/// Memory slices, as bits of GRES `gpuos`, of the MIG-switchable GPUs with these numbers in GRES `gpu`.
pub fn slices_of((pool, board): (&MigPool, &MigBoard), whole: GpuSet) -> u64 {
    let held = switchable(pool, board).filter(|(number, _)| number.is_in(whole));
    held.fold(0, |all, (_, bits)| all | bits)
}

/// The MIG-switchable GPUs: number in GRES `gpu`, and slices. Slices past those that gpuos steers are left out.
fn switchable(pool: &MigPool, board: &MigBoard) -> impl Iterator<Item = (GresGpu, u64)> {
    let size = usize::from(board.geometry.slices());
    let each = pool.gpus.iter().enumerate();
    each.filter_map(move |(nth, gpu)| {
        let number = pool.whole(gpu)?;
        let bits = GpuSet::first(size).0.checked_shl((nth * size) as u32);
        Some((number, bits.unwrap_or(0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuos_config::gpuos_toml::Config;

    #[test]
    fn slices_and_numbers_lead_to_each_other() {
        let text = "[[mig.board]]\nname = \"a30\"\nprofiles = [\n  \
            { id = 14, name = \"1g.6gb\", compute = 1, memory-mib = 5952, most = 4, size = 1, starts = [0, 1, 2, 3] },\n]\n\
            [[mig.pool]]\nnodes = \"n1\"\ngpus = \"1,4-7\"\nswitchable = \"6-7\"\nboard = \"a30\"\n";
        let config = Config::parse(text, "gpuos.toml").unwrap();
        let own = config.mig.pool_of("n1").unwrap();
        // GRES gpu has 0, 2, 3, 6, 7; the slices of 6 are 12 to 15.
        assert_eq!(slices_of(own, GpuSet(0b1111)), 0xf000);
        assert_eq!(slices_of(own, GpuSet(0b11111)), 0xf_f000);
        assert_eq!(whole_of(own, GpuSet(1 << 15)), GpuSet(0b1000));
        assert_eq!(whole_of(own, GpuSet(1 << 16 | 1)), GpuSet(0b1_0000));
        assert_eq!(whole_of(own, GpuSet(0xfff)), GpuSet::EMPTY);
    }
}
