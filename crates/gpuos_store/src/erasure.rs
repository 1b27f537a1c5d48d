//! Reed-Solomon over bytes: a shard of a stripe is a sum of others, each times a factor.
//!
//! The code and its products are those of the crate reed-solomon-erasure, GF(2⁸) with the polynomial 0x1d and a Vandermonde matrix
//! that leaves data as it is. As it is linear, the factors of any shard are what the code makes of units, and a piece of a shard can be
//! made of the same piece of the others, in any order.

use std::fmt;

use reed_solomon_erasure::galois_8::{ReedSolomon, mul_slice, mul_slice_xor};

/// The most shards of a stripe.
pub const MOST_SHARDS: u16 = 256;

/// Bytes that are made at a time, so that they and a block of a source stay in the nearest cache of the processor until all sources are in them. Blocks
/// of a page are three times as fast as those of 8 or 32 KiB on processors whose nearest cache has 32 KiB (docs/results/checkpoint-rates.md).
const BLOCK: usize = 4 << 10;

/// A code: so many shards of data, and so many of parity, of which any as many as those of data make all others.
pub struct Code {
    code: ReedSolomon,
    data: usize,
    shards: usize,
}

/// Why a shard cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoRecipe {
    /// No code has so many shards of data and parity: at least one of each, at most [`MOST_SHARDS`].
    NoCode {
        /// Shards of data.
        data: u16,
        /// Shards of parity.
        parity: u16,
    },
    /// A shard that the stripe does not have, one that is named twice, or the wanted one among its sources.
    NoShard(u16),
    /// The sources are not as many as the shards of data.
    Sources {
        /// How many were named.
        named: usize,
        /// How many it takes.
        needed: usize,
    },
}

/// How a shard is made of others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    factors: Vec<u8>,
}

impl Code {
    /// The code with these numbers of shards.
    ///
    /// # Errors
    /// [`NoRecipe::NoCode`].
    pub fn new(data: u16, parity: u16) -> Result<Code, NoRecipe> {
        let none = NoRecipe::NoCode { data, parity };
        if u32::from(data) + u32::from(parity) > u32::from(MOST_SHARDS) {
            return Err(none);
        }
        let (data, parity) = (usize::from(data), usize::from(parity));
        let code = ReedSolomon::new(data, parity).map_err(|_| none)?;
        Ok(Code {
            code,
            data,
            shards: data + parity,
        })
    }

    /// How shard `wanted` is made of `sources`: places in the stripe, those of data first.
    ///
    /// # Errors
    /// The sources are not exactly as many as the shards of data, or no shards of this stripe.
    pub fn recipe(&self, wanted: u16, sources: &[u16]) -> Result<Recipe, NoRecipe> {
        if sources.len() != self.data {
            return Err(NoRecipe::Sources {
                named: sources.len(),
                needed: self.data,
            });
        }
        let mut seen = vec![false; self.shards];
        for &shard in sources.iter().chain([&wanted]) {
            match seen.get_mut(usize::from(shard)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(NoRecipe::NoShard(shard)),
            }
        }
        let mut factors = Vec::with_capacity(self.data);
        for unit in sources {
            let mut shards: Vec<Option<Vec<u8>>> = vec![None; self.shards];
            for source in sources {
                shards[usize::from(*source)] = Some(vec![u8::from(source == unit)]);
            }
            // It has as many shards as it takes, each of one byte.
            let made = self.code.reconstruct(&mut shards);
            let factor = shards[usize::from(wanted)].as_ref().map(|shard| shard[0]);
            match (made, factor) {
                (Ok(()), Some(factor)) => factors.push(factor),
                _ => return Err(NoRecipe::NoShard(wanted)),
            }
        }
        Ok(Recipe { factors })
    }
}

impl Recipe {
    /// Makes a piece of the shard of the same piece of each source, in the recipe's order.
    ///
    /// # Panics
    /// The pieces are not as many as the sources, or not all as long as `made`.
    pub fn combine(&self, pieces: &[&[u8]], made: &mut [u8]) {
        assert_eq!(pieces.len(), self.factors.len(), "a piece of each source");
        let long = pieces.iter().all(|piece| piece.len() == made.len());
        assert!(long, "pieces as long as what is made of them");
        for (nth, made) in made.chunks_mut(BLOCK).enumerate() {
            let block = nth * BLOCK..nth * BLOCK + made.len();
            for (nth, (&factor, piece)) in self.factors.iter().zip(pieces).enumerate() {
                match nth {
                    0 => mul_slice(factor, &piece[block.clone()], made),
                    _ => mul_slice_xor(factor, &piece[block.clone()], made),
                }
            }
        }
    }
}

impl fmt::Display for NoRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRecipe::NoCode { data, parity } => write!(
                f,
                "there is no code of {data} + {parity} shards: at least one of each, at most {MOST_SHARDS} together"
            ),
            NoRecipe::NoShard(shard) => write!(
                f,
                "shard {shard} is not one of this stripe, is named twice, or is the wanted one"
            ),
            NoRecipe::Sources { named, needed } => {
                write!(f, "{named} source shards were named, and it takes {needed}")
            }
        }
    }
}

impl std::error::Error for NoRecipe {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_shard_is_made_of_any_others(
            data in 1u16..12,
            parity in 1u16..5,
            seed in any::<u64>(),
            length in 1usize..300,
        ) {
            let all = data + parity;
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32
            };
            // What the library itself encodes is what a recipe has to make.
            let mut stripe: Vec<Vec<u8>> = (0..all).map(|_| (0..length).map(|_| next() as u8).collect()).collect();
            ReedSolomon::new(data.into(), parity.into()).unwrap().encode(&mut stripe).unwrap();
            let mut order: Vec<u16> = (0..all).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, next() as usize % (at + 1));
            }
            let wanted = order[0];
            let sources = &order[1..=usize::from(data)];
            let recipe = Code::new(data, parity).unwrap().recipe(wanted, sources).unwrap();
            let pieces: Vec<&[u8]> = sources.iter().map(|shard| &stripe[usize::from(*shard)][..]).collect();
            let mut made = vec![0xaa; length];
            recipe.combine(&pieces, &mut made);
            prop_assert_eq!(&made, &stripe[usize::from(wanted)]);
        }
    }

    #[test]
    fn long_pieces_are_made_as_the_library_does() {
        let length = 2 * BLOCK + 5;
        let mut stripe: Vec<Vec<u8>> = (0..5_usize)
            .map(|nth| (0..length).map(|at| (at * (nth + 3)) as u8).collect())
            .collect();
        ReedSolomon::new(3, 2).unwrap().encode(&mut stripe).unwrap();
        let recipe = Code::new(3, 2).unwrap().recipe(4, &[0, 1, 2]).unwrap();
        let pieces: Vec<&[u8]> = stripe[..3].iter().map(Vec::as_slice).collect();
        let mut made = vec![0xaa; length];
        recipe.combine(&pieces, &mut made);
        assert!(made == stripe[4]);
    }

    #[test]
    fn a_partner_has_a_copy() {
        let recipe = Code::new(1, 1).unwrap().recipe(1, &[0]).unwrap();
        let mut made = [0; 4];
        recipe.combine(&[&[1, 2, 3, 250]], &mut made);
        assert_eq!(made, [1, 2, 3, 250]);
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for (data, parity) in [(0, 1), (1, 0), (200, 57), (u16::MAX, u16::MAX)] {
            let said = Code::new(data, parity).err().expect("refused").to_string();
            assert!(said.contains("there is no code of"), "{said}");
        }
        let code = Code::new(3, 2).unwrap();
        let refused = |wanted, sources: &[u16]| code.recipe(wanted, sources).unwrap_err();
        let few = NoRecipe::Sources {
            named: 2,
            needed: 3,
        };
        assert_eq!(refused(0, &[1, 2]), few);
        assert_eq!(refused(0, &[1, 1, 2]), NoRecipe::NoShard(1));
        assert_eq!(refused(0, &[0, 1, 2]), NoRecipe::NoShard(0));
        assert_eq!(refused(5, &[0, 1, 2]), NoRecipe::NoShard(5));
        assert_eq!(refused(0, &[1, 2, 9]), NoRecipe::NoShard(9));
    }
}
