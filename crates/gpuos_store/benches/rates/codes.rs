//! Parity and rebuilding in memory, beside the erasure library alone. Rates are of data, not of what is made of it.

use std::hint::black_box;

use gpuos_store::erasure::{Code, Recipe};
use gpuos_store::shard::PIECE;
use reed_solomon_erasure::galois_8::ReedSolomon;

use crate::bytes::{noise, rate};
use crate::table::Table;

const DATA: u16 = 6;
const PARITY: u16 = 2;
/// Stripes of each turn.
const TIMES: usize = 10;

pub fn measure(turns: usize, table: &mut Table) {
    let code = Code::new(DATA, PARITY).expect("6 + 2 is a code");
    let library = ReedSolomon::new(DATA.into(), PARITY.into()).expect("6 + 2 is a code");
    let mut stripe: Vec<Vec<u8>> = (0..DATA).map(|nth| noise(nth.into(), PIECE)).collect();
    stripe.resize(usize::from(DATA + PARITY), vec![0; PIECE]);
    library.encode(&mut stripe).expect("it has all shards");
    let bytes = usize::from(DATA) * PIECE * TIMES;

    let sources: Vec<u16> = (0..DATA).collect();
    let recipes =
        [DATA, DATA + 1].map(|wanted| code.recipe(wanted, &sources).expect("it can be made"));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut made = vec![vec![0; PIECE]; usize::from(PARITY)];
    let mut whole = stripe.clone();
    for _ in 0..turns {
        theirs.push(rate(bytes, || {
            for _ in 0..TIMES {
                library
                    .encode(black_box(&mut whole))
                    .expect("it has all shards");
            }
        }));
        ours.push(rate(bytes, || {
            for _ in 0..TIMES {
                for (recipe, made) in recipes.iter().zip(&mut made) {
                    combine(recipe, &stripe[..usize::from(DATA)], made);
                }
            }
        }));
    }
    assert_eq!(made, stripe[usize::from(DATA)..], "both make the same");
    table.add("parity 6+2 in memory", ours, "reed-solomon-erasure", theirs);

    // Node 0 is lost, and one shard of parity serves in its place.
    let sources: Vec<u16> = (1..=DATA).collect();
    let recipe = code.recipe(0, &sources).expect("it can be made");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut made = vec![0; PIECE];
    for _ in 0..turns {
        let mut whole: Vec<Option<Vec<u8>>> = stripe.iter().cloned().map(Some).collect();
        theirs.push(rate(bytes, || {
            for _ in 0..TIMES {
                whole[0] = None;
                library
                    .reconstruct_data(black_box(&mut whole))
                    .expect("one is missing");
            }
        }));
        ours.push(rate(bytes, || {
            for _ in 0..TIMES {
                combine(&recipe, &stripe[1..=usize::from(DATA)], &mut made);
            }
        }));
    }
    assert_eq!(made, stripe[0], "it is what was lost");
    table.add(
        "rebuild of one of 6+2 in memory",
        ours,
        "reed-solomon-erasure",
        theirs,
    );
}

fn combine(recipe: &Recipe, sources: &[Vec<u8>], made: &mut [u8]) {
    let pieces: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    recipe.combine(black_box(&pieces), made);
}
