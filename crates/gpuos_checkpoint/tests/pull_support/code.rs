//! An erasure code for tests, as plain as can be: a Cauchy matrix over GF(2^8), and XOR for one parity shard.

use std::sync::OnceLock;

/// x^8 + x^4 + x^3 + x^2 + 1.
const POLYNOMIAL: u16 = 0x11d;

fn slow_product(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (u16::from(a), 0);
    for bit in 0..8 {
        if b & (1 << bit) != 0 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= POLYNOMIAL;
        }
    }
    product as u8
}

fn products() -> &'static [Vec<u8>] {
    static PRODUCTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let row = |a: u8| (0..=255).map(|b| slow_product(a, b)).collect();
    PRODUCTS.get_or_init(|| (0..=255).map(row).collect())
}

fn product(a: u8, b: u8) -> u8 {
    products()[usize::from(a)][usize::from(b)]
}

fn inverse(a: u8) -> u8 {
    (1..=255)
        .find(|b| product(a, *b) == 1)
        .expect("0 has no inverse")
}

/// What a shard at a place of a stripe is made of: a factor for each of the `data` chunks.
fn row(place: u8, data: u8, parity: u8) -> Vec<u8> {
    (0..data)
        .map(|chunk| match place.checked_sub(data) {
            None => u8::from(place == chunk),
            Some(_) if parity == 1 => 1,
            Some(nth) => inverse((0x80 + nth) ^ chunk),
        })
        .collect()
}

/// The factors with which the shards at `sources` make the one at `wanted`.
pub fn factors(sources: &[u8], wanted: u8, data: u8, parity: u8) -> Vec<u8> {
    // Solves x * A = wanted, of which A has a row for each source: columns of A are equations.
    let rows: Vec<Vec<u8>> = sources
        .iter()
        .map(|place| row(*place, data, parity))
        .collect();
    let goal = row(wanted, data, parity);
    let size = usize::from(data);
    let mut equations: Vec<Vec<u8>> = (0..size)
        .map(|column| {
            rows.iter()
                .map(|row| row[column])
                .chain([goal[column]])
                .collect()
        })
        .collect();
    for at in 0..size {
        let pivot = (at..size)
            .find(|line| equations[*line][at] != 0)
            .expect("an invertible matrix");
        equations.swap(at, pivot);
        let by = inverse(equations[at][at]);
        let scaled: Vec<u8> = equations[at]
            .iter()
            .map(|value| product(*value, by))
            .collect();
        for (line, equation) in equations.iter_mut().enumerate() {
            let by = equation[at];
            if line != at && by != 0 {
                let pairs = equation.iter_mut().zip(&scaled);
                pairs.for_each(|(value, other)| *value ^= product(*other, by));
            }
        }
        equations[at] = scaled;
    }
    equations.iter().map(|equation| equation[size]).collect()
}

/// The sum of shards with their factors.
pub fn combine(factors: &[u8], shards: &[&[u8]]) -> Vec<u8> {
    let mut sum = vec![0; shards[0].len()];
    for (factor, shard) in factors.iter().zip(shards) {
        let by = &products()[usize::from(*factor)];
        assert_eq!(shard.len(), sum.len());
        for (at, byte) in shard.iter().enumerate() {
            sum[at] ^= by[usize::from(*byte)];
        }
    }
    sum
}
