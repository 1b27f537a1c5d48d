//! Boxes of a torus: the most compact one that has room.

use super::NONE;

/// The most shapes of a box that are tried.
const MAX_SHAPES: usize = 48;

/// What box searches need of a torus. Boxes are found on up to three dimensions; on more, nested
/// blocks and subcubes serve.
#[derive(Clone, Debug)]
pub(crate) struct Torus {
    dims: Vec<u32>,
    per_switch: usize,
    /// Node at each place, [`NONE`] where there is none.
    nodes: Vec<u32>,
}

/// Working space of a search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boxes {
    /// Free nodes below and before each corner, on a torus laid out twice in each dimension.
    sums: Vec<u32>,
    shapes: Vec<([u32; 3], u32)>,
}

impl Torus {
    pub fn new(dims: &[u32], per_switch: usize, nodes: &[Option<u32>]) -> Torus {
        Torus {
            dims: dims.to_vec(),
            per_switch,
            nodes: nodes.iter().map(|node| node.unwrap_or(NONE)).collect(),
        }
    }

    /// Rank of a switch on a walk that goes from neighbour to neighbour: the reflected code (Gray
    /// code on a hypercube), rows back and forth on a torus.
    pub fn snake(&self, switch: u32) -> u64 {
        let mut rank = 0u64;
        for dim in (0..self.dims.len()).rev() {
            let size = self.dims[dim];
            let stride: u32 = self.dims[..dim].iter().product();
            let at = switch / stride % size;
            let digit = if rank % 2 == 1 { size - 1 - at } else { at };
            rank = rank * u64::from(size) + u64::from(digit);
        }
        rank
    }

    /// Puts up to `most` sets of at least `need` free nodes into `out`, one after another with
    /// their ends in `ends`: boxes with the shortest sides first, then the fewest places, then the
    /// fewest free nodes left over, then the lowest corner.
    pub fn boxes(
        &self,
        work: &mut Boxes,
        need: usize,
        free: &dyn Fn(u32) -> bool,
        most: usize,
        out: &mut Vec<u32>,
        ends: &mut Vec<u32>,
    ) {
        if self.dims.len() > 3 || need == 0 || most == 0 {
            return;
        }
        let mut dims = [1u32; 3];
        dims[..self.dims.len()].copy_from_slice(&self.dims);
        self.sum(work, dims, free);
        self.shapes(work, dims, need);
        let side = dims.map(|d| 2 * d + 1);
        let sum = |x: u32, y: u32, z: u32, sums: &[u32]| {
            i64::from(sums[((z * side[1] + y) * side[0] + x) as usize])
        };
        let mut found = 0;
        for &(shape, _) in &work.shapes {
            let [a, b, c] = shape;
            let mut best = (u32::MAX, [0; 3]);
            // A box as long as the torus is the same wherever it starts.
            let starts = |dim: usize| {
                if shape[dim] == dims[dim] {
                    1
                } else {
                    dims[dim]
                }
            };
            for z in 0..starts(2) {
                for y in 0..starts(1) {
                    for x in 0..starts(0) {
                        let s = |dx, dy, dz| sum(x + dx, y + dy, z + dz, &work.sums);
                        let upper = s(a, b, c) - s(0, b, c) - s(a, 0, c) + s(0, 0, c);
                        let lower = s(a, b, 0) - s(0, b, 0) - s(a, 0, 0) + s(0, 0, 0);
                        let room = (upper - lower) as u32;
                        if room as usize >= need && room < best.0 {
                            best = (room, [x, y, z]);
                        }
                    }
                }
            }
            if best.0 == u32::MAX {
                continue;
            }
            self.collect(dims, best.1, shape, free, out);
            ends.push(out.len() as u32);
            found += 1;
            if found == most {
                return;
            }
        }
    }

    /// The free nodes of a box.
    fn collect(
        &self,
        dims: [u32; 3],
        at: [u32; 3],
        shape: [u32; 3],
        free: &dyn Fn(u32) -> bool,
        out: &mut Vec<u32>,
    ) {
        for z in 0..shape[2] {
            for y in 0..shape[1] {
                for x in 0..shape[0] {
                    let of = |dim: usize, step: u32| (at[dim] + step) % dims[dim];
                    let switch = (of(2, z) * dims[1] + of(1, y)) * dims[0] + of(0, x);
                    out.extend(self.on(switch).filter(|&node| free(node)));
                }
            }
        }
    }

    fn on(&self, switch: u32) -> impl Iterator<Item = u32> {
        let from = (switch as usize * self.per_switch).min(self.nodes.len());
        let to = (from + self.per_switch).min(self.nodes.len());
        self.nodes[from..to].iter().copied().filter(|&n| n != NONE)
    }

    fn sum(&self, work: &mut Boxes, dims: [u32; 3], free: &dyn Fn(u32) -> bool) {
        let side = dims.map(|d| 2 * d + 1);
        let index = |x: u32, y: u32, z: u32| ((z * side[1] + y) * side[0] + x) as usize;
        work.sums.clear();
        work.sums.resize(side.iter().product::<u32>() as usize, 0);
        for z in 1..side[2] {
            for y in 1..side[1] {
                let mut row = 0;
                for x in 1..side[0] {
                    let at = |dim: usize, v: u32| (v - 1) % dims[dim];
                    let switch = (at(2, z) * dims[1] + at(1, y)) * dims[0] + at(0, x);
                    row += self.on(switch).filter(|&node| free(node)).count() as u32;
                    let plane = work.sums[index(x, y - 1, z)] - work.sums[index(x, y - 1, z - 1)];
                    work.sums[index(x, y, z)] = row + plane + work.sums[index(x, y, z - 1)];
                }
            }
        }
    }

    /// Shapes with room for `need` nodes and at most for three times as many.
    fn shapes(&self, work: &mut Boxes, dims: [u32; 3], need: usize) {
        let switches = need.div_ceil(self.per_switch) as u64;
        work.shapes.clear();
        for a in 1..=dims[0] {
            for b in 1..=dims[1] {
                let area = u64::from(a) * u64::from(b);
                let least = switches.div_ceil(area).max(1);
                for c in least..=(least + 2).min(dims[2].into()) {
                    if area * c <= 3 * switches.max(2) {
                        work.shapes.push(([a, b, c as u32], (area * c) as u32));
                    }
                }
            }
        }
        let rank = |&(shape, volume): &([u32; 3], u32)| {
            let sides: u32 = shape.iter().sum();
            (sides, volume, shape)
        };
        work.shapes.sort_unstable_by_key(rank);
        work.shapes.truncate(MAX_SHAPES);
    }
}
