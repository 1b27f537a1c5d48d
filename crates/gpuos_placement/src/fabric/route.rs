//! The route between two switches of one island, for each kind of fabric.
//!
//! Links come in pairs: an even link and the one back, its successor.
use super::NONE;

/// How a route is found. Switches are counted within the island.
#[derive(Clone, Debug)]
pub(crate) enum Router {
    /// Up to the common switch and down again. Parallel links and switches of one stage are one:
    /// adaptive or hashed routing over many flows spreads them evenly.
    Tree {
        /// Switch above, or [`NONE`].
        parent: Vec<u32>,
        /// Link upwards; the link down is the next one.
        up: Vec<u32>,
        /// Number of switches above.
        depth: Vec<u16>,
    },
    /// Dimension by dimension, the shorter way round (upwards when both are as long). A hypercube
    /// is a torus with two switches in each dimension.
    Torus {
        /// Switches in each dimension; the first one varies fastest.
        dims: Vec<u32>,
        /// First link: the one upwards from switch `s` in dimension `d` is
        /// `base + 2 * (s * dims + d)`; the next one is the way back.
        base: u32,
    },
    /// Within the group to the switch with the link, over it, and within the other group: minimal
    /// routing. Of several links between two groups, ports take turns.
    Dragonfly {
        /// Switches in a group, and groups.
        routers: u32,
        groups: u32,
        /// Links between each two groups.
        globals: u32,
        /// First link within groups, and between groups.
        local: u32,
        global: u32,
    },
    /// Along a table of next links: fewest links, then the widest bottleneck, then the lowest link.
    Table {
        /// Number of switches.
        switches: u32,
        /// Link from switch `a` towards `b` at `a * switches + b`, or [`NONE`].
        next: Vec<u32>,
        /// First link, and the ends of each pair of links.
        base: u32,
        ends: Vec<(u32, u32)>,
    },
}

impl Router {
    /// Calls `visit` with each link from one switch to another; no link when there is no way.
    pub fn walk(&self, from: u32, to: u32, spread: u32, visit: &mut impl FnMut(u32)) {
        match self {
            Router::Tree { parent, up, depth } => {
                let (mut a, mut b) = (from as usize, to as usize);
                while a != b {
                    // The deeper side goes up first; then both in turn until they meet.
                    if depth[a] >= depth[b] {
                        if parent[a] == NONE {
                            return;
                        }
                        visit(up[a]);
                        a = parent[a] as usize;
                    } else {
                        visit(up[b] + 1);
                        b = parent[b] as usize;
                    }
                }
            }
            Router::Torus { dims, base } => {
                let count = dims.len() as u32;
                let (mut at, mut stride) = (from, 1);
                for (nth, &size) in dims.iter().enumerate() {
                    let goal = to / stride % size;
                    let mut here = at / stride % size;
                    let up = (goal + size - here) % size;
                    // With two switches in a dimension, there is one link and no way round.
                    let upwards = 2 * up <= size && (size != 2 || here == 0);
                    while here != goal {
                        let next = (here + if upwards { 1 } else { size - 1 }) % size;
                        let moved = at - here * stride + next * stride;
                        let lower = if upwards { at } else { moved };
                        let link = base + 2 * (lower * count + nth as u32);
                        visit(link + u32::from(!upwards));
                        (at, here) = (moved, next);
                    }
                    stride *= size;
                }
            }
            Router::Dragonfly {
                routers, globals, ..
            } => {
                let (a, b) = (from / routers, to / routers);
                if a == b {
                    return visit(self.local(from, to % routers));
                }
                let nth = (from + to + spread) % globals;
                let (out, into) = (self.gateway(a, b, nth), self.gateway(b, a, nth));
                if from % routers != out {
                    visit(self.local(from, out));
                }
                visit(self.global(a, b, nth));
                if to % routers != into {
                    visit(self.local(b * routers + into, to % routers));
                }
            }
            Router::Table {
                switches,
                next,
                base,
                ends,
            } => {
                let mut at = from;
                while at != to {
                    let link = next[(at * switches + to) as usize];
                    if link == NONE {
                        return;
                    }
                    visit(link);
                    let (a, b) = ends[((link - base) / 2) as usize];
                    at = if at == a { b } else { a };
                }
            }
        }
    }

    /// The links from a switch to the border of the island. Only a tree has one place for it; other
    /// fabrics have their ways out spread over all switches.
    pub fn leave(&self, from: u32, visit: &mut impl FnMut(u32)) {
        if let Router::Tree { parent, up, .. } = self {
            let mut at = from as usize;
            while parent[at] != NONE {
                visit(up[at]);
                at = parent[at] as usize;
            }
        }
    }

    /// The links from the border of the island to a switch.
    pub fn enter(&self, to: u32, visit: &mut impl FnMut(u32)) {
        self.leave(to, &mut |link| visit(link + 1));
    }

    /// Link from a switch of a dragonfly to switch number `to` of its group.
    fn local(&self, from: u32, to: u32) -> u32 {
        let Router::Dragonfly { routers, local, .. } = *self else {
            return 0;
        };
        let (group, at) = (from / routers, from % routers);
        let pair = pair(at, to, routers);
        let pairs = routers * (routers - 1) / 2;
        local + 2 * (group * pairs + pair) + u32::from(at > to)
    }

    /// Link number `nth` from one group of a dragonfly to another.
    fn global(&self, from: u32, to: u32, nth: u32) -> u32 {
        let Router::Dragonfly {
            groups,
            globals,
            global,
            ..
        } = *self
        else {
            return 0;
        };
        let pair = pair(from, to, groups);
        global + 2 * (pair * globals + nth) + u32::from(from > to)
    }

    /// Switch, within its group, that holds link `nth` from group `from` to group `to`: links are
    /// dealt to the switches in turn, starting with the next group.
    fn gateway(&self, from: u32, to: u32, nth: u32) -> u32 {
        let Router::Dragonfly {
            routers,
            groups,
            globals,
            ..
        } = *self
        else {
            return 0;
        };
        let distance = (to + groups - from - 1) % groups;
        (distance * globals + nth) % routers
    }

    /// The switches that a link joins, counted within the island; [`NONE`] for what is above all.
    pub fn ends(&self, link: u32) -> Option<(u32, u32)> {
        let back = link & 1 == 1;
        let even = link & !1;
        let (a, b) = match self {
            Router::Tree { parent, up, .. } => {
                let at = up.iter().position(|&up| up == even)?;
                (at as u32, parent[at])
            }
            Router::Torus { dims, base } => {
                let at = even.checked_sub(*base)? / 2;
                let count = dims.len() as u32;
                let (switch, dim) = (at / count, (at % count) as usize);
                let stride: u32 = dims[..dim].iter().product();
                if switch >= dims.iter().product() {
                    return None;
                }
                let here = switch / stride % dims[dim];
                let next = (here + 1) % dims[dim];
                (switch, switch - here * stride + next * stride)
            }
            Router::Dragonfly {
                routers,
                groups,
                globals,
                local,
                global,
            } => {
                let pairs = (0..*groups).flat_map(|a| (a + 1..*groups).map(move |b| (a, b)));
                let within = (0..*routers).flat_map(|a| (a + 1..*routers).map(move |b| (a, b)));
                if even >= *global {
                    let nth = (even - global) / 2;
                    let (a, b) = pairs.clone().nth((nth / globals) as usize)?;
                    let nth = nth % globals;
                    (
                        a * routers + self.gateway(a, b, nth),
                        b * routers + self.gateway(b, a, nth),
                    )
                } else {
                    let nth = even.checked_sub(*local)? / 2;
                    let per_group = routers * (routers - 1) / 2;
                    let (group, nth) = (nth / per_group, nth % per_group);
                    let (a, b) = within.clone().nth(nth as usize)?;
                    (group * routers + a, group * routers + b)
                }
            }
            Router::Table { base, ends, .. } => {
                *ends.get((even.checked_sub(*base)? / 2) as usize)?
            }
        };
        Some(if back { (b, a) } else { (a, b) })
    }
}

/// Number of the pair of `a` and `b` among all pairs of `count` things: those of the lowest first.
fn pair(a: u32, b: u32, count: u32) -> u32 {
    let (low, high) = (a.min(b), a.max(b));
    low * (2 * count - low - 1) / 2 + high - low - 1
}

/// The table of next links of a graph: from each switch towards each other one the fewest links,
/// among those the widest bottleneck, among those the lowest link.
pub(crate) fn table(switches: u32, base: u32, links: &[(u32, u32)], capacity: &[u32]) -> Vec<u32> {
    let count = switches as usize;
    let mut near: Vec<Vec<(u32, u32)>> = vec![Vec::new(); count];
    for (at, &(a, b)) in links.iter().enumerate() {
        let link = base + 2 * at as u32;
        near[a as usize].push((link, b));
        near[b as usize].push((link + 1, a));
    }
    let mut next = vec![NONE; count * count];
    let mut hops = vec![NONE; count];
    let mut width = vec![0u32; count];
    let mut queue = Vec::with_capacity(count);
    for goal in 0..count {
        hops.fill(NONE);
        hops[goal] = 0;
        width[goal] = u32::MAX;
        queue.clear();
        queue.push(goal as u32);
        let mut head = 0;
        // Breadth first from the goal; a switch is settled before it is reached from.
        while let Some(&at) = queue.get(head) {
            head += 1;
            let far = hops[at as usize];
            if far > 0 {
                let mut best = (0, NONE);
                for &(link, other) in &near[at as usize] {
                    if hops[other as usize] != NONE && hops[other as usize] + 1 == far {
                        let wide = width[other as usize].min(capacity[link as usize & !1]);
                        if best.1 == NONE || wide > best.0 {
                            best = (wide, link);
                        }
                    }
                }
                width[at as usize] = best.0;
                next[at as usize * count + goal] = best.1;
            }
            for &(_, other) in &near[at as usize] {
                if hops[other as usize] == NONE {
                    hops[other as usize] = far + 1;
                    queue.push(other);
                }
            }
        }
    }
    next
}
