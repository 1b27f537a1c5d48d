//! The shape itself: read, written, checked, and the coordinates of a rank.
use std::fmt;

/// What a shape looks like, for errors and help.
pub const SHAPE_FORM: &str =
    "sizes of groups such as tp8:pp4:dp16, of tp, cp, pp, dp and ep, each once, from 1 to 65536";

/// The largest group, and the most ranks.
const MAX_SIZE: u32 = 1 << 16;
const MAX_RANKS: u64 = 1 << 20;

/// A kind of group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKind {
    /// Tensor parallel.
    Tp,
    /// Context (sequence) parallel.
    Cp,
    /// Pipeline parallel.
    Pp,
    /// Data parallel.
    Dp,
}

impl GroupKind {
    /// The kinds that number the ranks, those that belong closest together first.
    pub const ALL: [GroupKind; 4] = [GroupKind::Tp, GroupKind::Cp, GroupKind::Pp, GroupKind::Dp];
}

/// The group sizes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupShape {
    /// Ranks of a tensor-parallel group.
    pub tp: u32,
    /// Ranks of a context-parallel group.
    pub cp: u32,
    /// Stages of a pipeline.
    pub pp: u32,
    /// Data-parallel replicas.
    pub dp: u32,
    /// Ranks of an expert-parallel group, a part of `cp` times `dp`.
    pub ep: u32,
    /// The order in which the framework numbers ranks, the fastest first: the kinds as written,
    /// then those left out.
    order: [GroupKind; 4],
}

impl Default for GroupShape {
    fn default() -> GroupShape {
        GroupShape {
            tp: 1,
            cp: 1,
            pp: 1,
            dp: 1,
            ep: 1,
            order: GroupKind::ALL,
        }
    }
}

impl GroupShape {
    /// Reads `tp8:pp4:dp16`: any of tp, cp, pp, dp and ep in any order, each once, in any case. The
    /// order of writing is that in which the program numbers its ranks, the fastest first.
    ///
    /// # Errors
    /// What is wrong, without the form that is accepted ([`SHAPE_FORM`]).
    pub fn parse(text: &str) -> Result<GroupShape, String> {
        let mut shape = GroupShape::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut order: Vec<GroupKind> = Vec::new();
        for part in text.split(':') {
            let word = part.trim_end_matches(|c: char| c.is_ascii_digit());
            let size = &part[word.len()..];
            let kinds = ["tp", "cp", "pp", "dp", "ep"];
            let kind = kinds.iter().find(|kind| kind.eq_ignore_ascii_case(word));
            let Some(&kind) = kind else {
                return Err(match part {
                    "" => "a group is missing".into(),
                    part => format!("'{}' is no group", gpuos_model::hostlist::shorten(part)),
                });
            };
            if seen.contains(&kind) {
                return Err(format!("{kind} stands there twice"));
            }
            seen.push(kind);
            let size = size.parse::<u32>().ok();
            let size = size.filter(|size| (1..=MAX_SIZE).contains(size));
            let Some(size) = size else {
                return Err(format!("{kind} has no size from 1 to {MAX_SIZE}"));
            };
            match kind {
                "tp" => shape.tp = size,
                "cp" => shape.cp = size,
                "pp" => shape.pp = size,
                "dp" => shape.dp = size,
                _ => shape.ep = size,
            }
            let group = GroupKind::ALL.iter().zip(kinds);
            order.extend(
                group
                    .filter(|(_, word)| *word == kind)
                    .map(|(group, _)| group),
            );
        }
        for group in GroupKind::ALL {
            if !order.contains(&group) {
                order.push(group);
            }
        }
        shape.order.copy_from_slice(&order);
        if shape.wide() > MAX_RANKS {
            return Err(format!(
                "it makes {} ranks, more than {MAX_RANKS}",
                shape.wide()
            ));
        }
        if u64::from(shape.cp) * u64::from(shape.dp) % u64::from(shape.ep) != 0 {
            return Err(format!(
                "ep{} is no part of cp{} times dp{}: expert-parallel groups lie inside them",
                shape.ep, shape.cp, shape.dp
            ));
        }
        Ok(shape)
    }

    /// Number of ranks, one for each GPU.
    pub fn ranks(&self) -> u32 {
        self.wide().min(MAX_RANKS) as u32
    }

    fn wide(&self) -> u64 {
        let sizes = [self.tp, self.cp, self.pp, self.dp].map(u64::from);
        sizes.into_iter().fold(1, u64::saturating_mul)
    }

    /// Size of a kind of group.
    pub fn size(&self, kind: GroupKind) -> u32 {
        match kind {
            GroupKind::Tp => self.tp,
            GroupKind::Cp => self.cp,
            GroupKind::Pp => self.pp,
            GroupKind::Dp => self.dp,
        }
    }

    /// Whether a job of so many GPUs can have this shape; `per_node` when each node has the same
    /// number of them.
    ///
    /// # Errors
    /// A sentence: another number of ranks than GPUs, tensor-parallel groups that nodes would cut.
    pub fn check(&self, gpus: u64, per_node: Option<u32>) -> Result<(), String> {
        let ranks = u64::from(self.ranks());
        if ranks != gpus {
            let sizes = [
                ("tp", self.tp),
                ("cp", self.cp),
                ("pp", self.pp),
                ("dp", self.dp),
            ];
            let sizes = sizes.iter().filter(|(_, size)| *size > 1);
            let sizes: Vec<String> = sizes.map(|(_, size)| size.to_string()).collect();
            let product = match sizes.len() {
                0 | 1 => String::new(),
                _ => format!("{} = ", sizes.join(" x ")),
            };
            let asked = match per_node.filter(|&per| per > 0) {
                Some(per) => format!("{gpus} ({} nodes with {per} each)", gpus / u64::from(per)),
                None => gpus.to_string(),
            };
            return Err(format!(
                "the groups make {product}{ranks} ranks, and the job asks for {asked} GPUs"
            ));
        }
        match per_node
            .filter(|&per| per > 0 && !per.is_multiple_of(self.tp) && !self.tp.is_multiple_of(per))
        {
            Some(per) => Err(format!(
                "nodes with {per} GPUs would cut tensor-parallel groups of {}",
                self.tp
            )),
            None => Ok(()),
        }
    }

    /// Place of a rank in each kind of group, by [`GroupKind::ALL`].
    pub fn coordinates(&self, rank: u32) -> [u32; 4] {
        let mut rest = rank;
        let mut at = [0; 4];
        for kind in self.order {
            let size = self.size(kind);
            at[kind as usize] = rest % size;
            rest /= size;
        }
        at
    }

    /// Number of a rank when ranks are counted with the closest groups first: tp, cp, pp, dp.
    pub fn nested(&self, rank: u32) -> u32 {
        let at = self.coordinates(rank);
        let kinds = GroupKind::ALL.iter().rev();
        kinds.fold(0, |all, &kind| all * self.size(kind) + at[kind as usize])
    }

    /// Number of the group of a kind that a rank is in: equal for the ranks of one group.
    pub fn group(&self, kind: GroupKind, rank: u32) -> u32 {
        let at = self.coordinates(rank);
        let kinds = GroupKind::ALL.iter().filter(|&&other| other != kind);
        kinds.fold(0, |all, &kind| all * self.size(kind) + at[kind as usize])
    }
}

/// The shape as [`GroupShape::parse`] reads it; groups of one rank are left out, unless all are.
impl fmt::Display for GroupShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ["tp", "cp", "pp", "dp"];
        let own = self
            .order
            .map(|kind| (words[kind as usize], self.size(kind)));
        let all = own.into_iter().chain([("ep", self.ep)]);
        let mut colon = "";
        for (word, size) in all.filter(|(_, size)| *size > 1) {
            write!(f, "{colon}{word}{size}")?;
            colon = ":";
        }
        if colon.is_empty() {
            f.write_str("dp1")
        } else {
            Ok(())
        }
    }
}
