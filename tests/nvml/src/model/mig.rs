//! How GPUs can be divided (MIG): GPU instance profiles, their sizes, limits and places.
//!
//! Ids and placements: `nvidia-smi mig -lgip` and `-lgipp` as printed on A100, A30 and H100; placements of a
//! kind have the length of the profile's memory slices, also on Hopper and Blackwell. Engine counts:
//! NVIDIA's MIG User Guide, "Supported MIG Profiles". What stands under "estimated" in `source` was
//! seen nowhere.

/// How one model of GPU can be divided.
pub struct Mig {
    /// Memory slices.
    pub slices: u32,
    /// Multiprocessors of one compute slice.
    pub slice_cores: u32,
    /// GPU instance profiles.
    pub profiles: &'static [Profile],
    /// Where the figures come from.
    pub source: &'static str,
}

/// A GPU instance profile.
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`: the index that queries use.
    pub index: u32,
    /// The id that users know, and creation uses.
    pub id: u32,
    /// Name, without the `MIG ` before it.
    pub name: &'static str,
    /// Compute slices, and memory slices.
    pub slices: [u32; 2],
    /// Instances that fit on an empty GPU.
    pub count: u32,
    /// First memory slices that an instance may have.
    pub starts: &'static [u32],
    /// Multiprocessors.
    pub cores: u32,
    /// Copy engines, decoders, encoders, JPEG decoders, optical flow engines.
    pub engines: [u32; 5],
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Mig {
    /// The profile with this id.
    pub fn by_id(&self, id: u32) -> Option<&'static Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile with this index.
    pub fn by_index(&self, index: u32) -> Option<&'static Profile> {
        self.profiles.iter().find(|profile| profile.index == index)
    }
}

const ANY: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
const EVEN: &[u32] = &[0, 2, 4];
const DOUBLE: &[u32] = &[0, 2, 4, 6];
const HALF: &[u32] = &[0, 4];
const FIRST: &[u32] = &[0];

/// One row of the tables below.
#[expect(clippy::too_many_arguments, reason = "a row of a table")]
const fn row(
    index: u32,
    id: u32,
    name: &'static str,
    slices: [u32; 2],
    count: u32,
    starts: &'static [u32],
    cores: u32,
    engines: [u32; 5],
    memory_mib: u64,
) -> Profile {
    Profile {
        index,
        id,
        name,
        slices,
        count,
        starts,
        cores,
        engines,
        memory_mib,
    }
}

/// A100 with 40 GB.
pub static A100_40: Mig = Mig {
    slices: 8,
    slice_cores: 14,
    profiles: &[
        row(0, 19, "1g.5gb", [1, 1], 7, ANY, 14, [1, 0, 0, 0, 0], 4864),
        row(
            7,
            20,
            "1g.5gb+me",
            [1, 1],
            1,
            ANY,
            14,
            [1, 1, 0, 1, 1],
            4864,
        ),
        row(
            9,
            15,
            "1g.10gb",
            [1, 2],
            4,
            DOUBLE,
            14,
            [1, 1, 0, 0, 0],
            9856,
        ),
        row(1, 14, "2g.10gb", [2, 2], 3, EVEN, 28, [2, 1, 0, 0, 0], 9856),
        row(2, 9, "3g.20gb", [3, 4], 2, HALF, 42, [3, 2, 0, 0, 0], 19968),
        row(
            3,
            5,
            "4g.20gb",
            [4, 4],
            1,
            FIRST,
            56,
            [4, 2, 0, 0, 0],
            19968,
        ),
        row(
            4,
            0,
            "7g.40gb",
            [7, 8],
            1,
            FIRST,
            98,
            [7, 5, 0, 1, 1],
            40192,
        ),
    ],
    source: "nvidia-smi mig -lgip on A100-SXM4-40GB; memory in MiB from go-nvml's recorded A100",
};

/// A100 with 80 GB.
pub static A100_80: Mig = Mig {
    slices: 8,
    slice_cores: 14,
    profiles: &[
        row(0, 19, "1g.10gb", [1, 1], 7, ANY, 14, [1, 0, 0, 0, 0], 9728),
        row(
            7,
            20,
            "1g.10gb+me",
            [1, 1],
            1,
            ANY,
            14,
            [1, 1, 0, 1, 1],
            9728,
        ),
        row(
            9,
            15,
            "1g.20gb",
            [1, 2],
            4,
            DOUBLE,
            14,
            [1, 1, 0, 0, 0],
            19968,
        ),
        row(
            1,
            14,
            "2g.20gb",
            [2, 2],
            3,
            EVEN,
            28,
            [2, 1, 0, 0, 0],
            19968,
        ),
        row(2, 9, "3g.40gb", [3, 4], 2, HALF, 42, [3, 2, 0, 0, 0], 40192),
        row(
            3,
            5,
            "4g.40gb",
            [4, 4],
            1,
            FIRST,
            56,
            [4, 2, 0, 0, 0],
            40192,
        ),
        row(
            4,
            0,
            "7g.80gb",
            [7, 8],
            1,
            FIRST,
            98,
            [7, 5, 0, 1, 1],
            80896,
        ),
    ],
    source: "nvidia-smi mig -lgip on A100-SXM4-80GB (9.50, 19.50, 39.25, 79.00 GiB)",
};

/// A30.
pub static A30: Mig = Mig {
    slices: 4,
    slice_cores: 14,
    profiles: &[
        row(
            0,
            14,
            "1g.6gb",
            [1, 1],
            4,
            &[0, 1, 2, 3],
            14,
            [1, 0, 0, 0, 0],
            5952,
        ),
        row(
            7,
            21,
            "1g.6gb+me",
            [1, 1],
            1,
            &[0, 1, 2, 3],
            14,
            [1, 1, 0, 1, 1],
            5952,
        ),
        row(
            1,
            5,
            "2g.12gb",
            [2, 2],
            2,
            &[0, 2],
            28,
            [2, 2, 0, 0, 0],
            11968,
        ),
        row(
            8,
            6,
            "2g.12gb+me",
            [2, 2],
            1,
            &[0, 2],
            28,
            [2, 2, 0, 1, 1],
            11968,
        ),
        row(
            3,
            0,
            "4g.24gb",
            [4, 4],
            1,
            FIRST,
            56,
            [4, 4, 0, 1, 1],
            24000,
        ),
    ],
    source: "nvidia-smi mig -lgip and -lgipp on A30 (5.81, 11.69, 23.44 GiB)",
};

/// H100 with 80 GB.
pub static H100_80: Mig = Mig {
    slices: 8,
    slice_cores: 16,
    profiles: &[
        row(0, 19, "1g.10gb", [1, 1], 7, ANY, 16, [1, 1, 0, 1, 0], 9984),
        row(
            7,
            20,
            "1g.10gb+me",
            [1, 1],
            1,
            ANY,
            16,
            [1, 1, 0, 1, 1],
            9984,
        ),
        row(
            9,
            15,
            "1g.20gb",
            [1, 2],
            4,
            DOUBLE,
            26,
            [1, 1, 0, 1, 0],
            20096,
        ),
        row(
            1,
            14,
            "2g.20gb",
            [2, 2],
            3,
            EVEN,
            32,
            [2, 2, 0, 2, 0],
            20096,
        ),
        row(2, 9, "3g.40gb", [3, 4], 2, HALF, 60, [3, 3, 0, 3, 0], 40448),
        row(
            3,
            5,
            "4g.40gb",
            [4, 4],
            1,
            FIRST,
            64,
            [4, 4, 0, 4, 0],
            40448,
        ),
        row(
            4,
            0,
            "7g.80gb",
            [7, 8],
            1,
            FIRST,
            132,
            [8, 7, 0, 7, 1],
            81152,
        ),
    ],
    source: "nvidia-smi mig -lgip on H100 80GB HBM3 (9.75, 19.62, 39.50, 79.25 GiB)",
};

/// H200.
pub static H200: Mig = Mig {
    slices: 8,
    slice_cores: 16,
    profiles: &[
        row(0, 19, "1g.18gb", [1, 1], 7, ANY, 16, [1, 1, 0, 1, 0], 16384),
        row(
            7,
            20,
            "1g.18gb+me",
            [1, 1],
            1,
            ANY,
            16,
            [1, 1, 0, 1, 1],
            16384,
        ),
        row(
            9,
            15,
            "1g.35gb",
            [1, 2],
            4,
            DOUBLE,
            26,
            [1, 1, 0, 1, 0],
            33280,
        ),
        row(
            1,
            14,
            "2g.35gb",
            [2, 2],
            3,
            EVEN,
            32,
            [2, 2, 0, 2, 0],
            33280,
        ),
        row(2, 9, "3g.71gb", [3, 4], 2, HALF, 60, [3, 3, 0, 3, 0], 70656),
        row(
            3,
            5,
            "4g.71gb",
            [4, 4],
            1,
            FIRST,
            64,
            [4, 4, 0, 4, 0],
            70656,
        ),
        row(
            4,
            0,
            "7g.141gb",
            [7, 8],
            1,
            FIRST,
            132,
            [8, 7, 0, 7, 1],
            143360,
        ),
    ],
    source: "MIG User Guide, table of H200; 1g.18gb's 16.00 GiB and 16 SM as printed by nvidia-smi. Estimated: memory of the other profiles; their SM are those of H100",
};

/// B200.
pub static B200: Mig = Mig {
    slices: 8,
    slice_cores: 18,
    profiles: &[
        row(0, 19, "1g.23gb", [1, 1], 7, ANY, 18, [2, 1, 0, 1, 0], 22016),
        row(
            7,
            20,
            "1g.23gb+me",
            [1, 1],
            1,
            ANY,
            18,
            [2, 1, 0, 1, 1],
            22016,
        ),
        row(
            9,
            15,
            "1g.45gb",
            [1, 2],
            4,
            DOUBLE,
            30,
            [2, 1, 0, 1, 0],
            44544,
        ),
        row(
            1,
            14,
            "2g.45gb",
            [2, 2],
            3,
            EVEN,
            36,
            [3, 1, 0, 1, 0],
            44544,
        ),
        row(2, 9, "3g.90gb", [3, 4], 2, HALF, 70, [6, 1, 0, 1, 0], 90112),
        row(
            3,
            5,
            "4g.90gb",
            [4, 4],
            1,
            FIRST,
            72,
            [8, 1, 0, 1, 0],
            90112,
        ),
        row(
            4,
            0,
            "7g.180gb",
            [7, 8],
            1,
            FIRST,
            148,
            [16, 1, 0, 1, 1],
            182272,
        ),
    ],
    source: "MIG User Guide, table of B200 (engines as in its columns); 1g has 18 SM as PyTorch reports. Estimated: memory in MiB, SM of the profiles between 1g and 7g",
};

#[cfg(test)]
mod tests {
    use gpuos_model::mig::Geometry;

    use super::*;

    /// What holds for every table, whatever it says: placements inside the GPU, counts that the placements
    /// allow, and never more than 7 compute slices in placements that do not overlap.
    #[test]
    fn tables_are_consistent() {
        for mig in [&A100_40, &A100_80, &A30, &H100_80, &H200, &B200] {
            for profile in mig.profiles {
                let [compute, memory] = profile.slices;
                assert!(compute <= memory || compute <= 7, "{}", profile.name);
                for start in profile.starts {
                    assert!(start % memory == 0, "{}", profile.name);
                    assert!(start + memory <= mig.slices, "{}", profile.name);
                }
                assert!(profile.count as usize <= profile.starts.len());
                assert!(profile.engines[0] > 0 && profile.memory_mib > 4000);
            }
            let most: u32 = mig.slices - 1 + u32::from(mig.slices == 4);
            assert_eq!(largest_use(mig, 0), most, "{}", mig.source);
        }
    }

    /// The boards of the simulator are these, so that what is measured there holds here.
    #[test]
    fn the_simulators_boards_are_these() {
        let boards = include_str!("../../../../crates/gpuos_sim/data/mig/boards.json");
        let boards: Vec<serde_json::Value> = serde_json::from_str(boards).unwrap();
        for (name, mig) in [
            ("a100-40gb", &A100_40),
            ("a100-80gb", &A100_80),
            ("a30", &A30),
            ("h100-80gb", &H100_80),
            ("h200", &H200),
            ("b200", &B200),
        ] {
            let board = boards.iter().find(|board| board["name"] == name).unwrap();
            let told: Geometry = serde_json::from_value(board["profiles"].clone()).unwrap();
            let narrow = |number: u32| number as u8;
            let ours = mig
                .profiles
                .iter()
                .map(|profile| gpuos_model::mig::Profile {
                    id: profile.id,
                    name: profile.name.into(),
                    compute: narrow(profile.slices[0]),
                    memory_mib: profile.memory_mib,
                    most: narrow(profile.count),
                    size: narrow(profile.slices[1]),
                    starts: profile.starts.iter().copied().map(narrow).collect(),
                    engines: std::array::from_fn(|engine| narrow(profile.engines[engine + 1])),
                });
            assert_eq!(told, Geometry::new(ours.collect()).unwrap(), "{name}");
            assert_eq!(u32::from(told.slices()), mig.slices, "{name}");
        }
    }

    /// The most compute slices of instances from memory slice `from` on.
    fn largest_use(mig: &Mig, from: u32) -> u32 {
        let mut best = 0;
        for profile in mig.profiles {
            for &start in profile.starts.iter().filter(|&&start| start >= from) {
                let [compute, memory] = profile.slices;
                best = best.max(compute + largest_use(mig, start + memory));
            }
        }
        best
    }
}
