//! Blocks of nodes, and the larger blocks that Slurm makes of them.

use std::collections::HashMap;

use gpuos_model::cluster::{Fabric, FabricLevel};

use super::{Switch, leaf_of, level};

/// Slurm makes blocks of at most 2^15 blocks.
const MAX_LEVEL: u32 = 15;

/// Without BlockSizes Slurm makes blocks of up to 2^4 blocks.
const USUAL_LEVEL: u32 = 4;

/// A block topology.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Blocks {
    /// In the order of the file.
    pub blocks: Vec<Switch>,
    /// `BlockSizes` in nodes as they are written; empty when there are none.
    pub sizes: Vec<u32>,
}

/// Checks sizes as Slurm does: each the first one times a power of two.
pub(super) fn check_sizes(sizes: &[u32]) -> Result<(), String> {
    let base = sizes.first().copied().unwrap_or(1);
    let fits = |size: &u32| {
        base > 0 && *size > 0 && size.is_multiple_of(base) && {
            let blocks = size / base;
            blocks.is_power_of_two() && blocks.ilog2() <= MAX_LEVEL
        }
    };
    match sizes.iter().find(|size| !fits(size)) {
        None => Ok(()),
        Some(size) => Err(format!(
            "block size {size} is not the first one times a power of two; write for example 8,16,64"
        )),
    }
}

impl Blocks {
    /// Level `block`, and one for each larger size: `block32` are blocks that have 32 nodes together by BlockSizes.
    pub(super) fn fabric(&self, index: &HashMap<&str, usize>) -> Fabric {
        let block_of = leaf_of(&self.blocks, index);
        let mut levels = vec![self.join("block".into(), 1, &block_of)];
        let base = self.base(index);
        for joined in self.joined().into_iter().filter(|joined| *joined > 1) {
            let name = format!("block{}", base.saturating_mul(joined as u32));
            levels.push(self.join(name, joined, &block_of));
        }
        Fabric { levels }
    }

    /// Nodes of a block.
    fn base(&self, index: &HashMap<&str, usize>) -> u32 {
        let known = |block: &Switch| {
            let nodes = block.nodes.iter();
            nodes
                .filter(|node| index.contains_key(node.as_str()))
                .count() as u32
        };
        match self.sizes.first() {
            Some(base) => *base,
            None => self
                .blocks
                .iter()
                .map(known)
                .find(|count| *count > 0)
                .unwrap_or(1),
        }
    }

    /// How many blocks make a larger one, ascending, 1 among them: up to the first that holds all.
    fn joined(&self) -> Vec<usize> {
        let base = self.sizes.first().copied().unwrap_or(1).max(1);
        let mut all: Vec<usize> = match self.sizes.is_empty() {
            true => (0..=USUAL_LEVEL).map(|power| 1 << power).collect(),
            false => self
                .sizes
                .iter()
                .map(|size| (size / base) as usize)
                .collect(),
        };
        all.sort_unstable();
        all.dedup();
        let end = all.iter().position(|joined| *joined >= self.blocks.len());
        all.truncate(end.map_or(all.len(), |end| end + 1));
        all
    }

    /// `joined` neighbours in the order of the file are one domain; the last may have fewer.
    fn join(&self, name: String, joined: usize, block_of: &[Option<usize>]) -> FabricLevel {
        let group_of: Vec<Option<usize>> = block_of
            .iter()
            .map(|block| block.map(|at| at / joined))
            .collect();
        level(name, &group_of, |group| {
            let first = group * joined;
            let last = (first + joined).min(self.blocks.len()) - 1;
            let [first, last] = [first, last].map(|at| self.blocks[at].name.as_str());
            match first == last {
                true => first.to_owned(),
                false => format!("{first}..{last}"),
            }
        })
    }
}
