//! Which GPU a workload manager means by a number.

/// How a workload manager numbers a node's GPUs: in an order of its own, by the minor numbers of their device files, or by NVML's order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuNumbering {
    /// Minor numbers in the order of the workload manager's numbers; empty = the same numbers.
    minors: Vec<u32>,
    /// It goes by the order of NVML, that of the bus.
    by_bus: bool,
    /// UUIDs in the order of the workload manager's numbers, where it goes by them; else empty.
    uuids: Vec<String>,
}

impl GpuNumbering {
    /// The workload manager's number is the minor number: where its configuration names no device files.
    pub fn identity() -> GpuNumbering {
        GpuNumbering::default()
    }

    /// In the order of these minor numbers; `None`: the configuration names no device files, or none of NVIDIA's. `by_bus`: it goes by
    /// the order of NVML among them, or among all.
    pub fn new(minors: Option<Vec<u32>>, by_bus: bool) -> GpuNumbering {
        GpuNumbering {
            minors: minors.unwrap_or_default(),
            by_bus,
            uuids: Vec::new(),
        }
    }

    /// In the order of these UUIDs. Where one of them is empty, in NVML's order.
    pub fn of_uuids(uuids: &[String]) -> GpuNumbering {
        let whole = uuids.iter().all(|uuid| !uuid.is_empty());
        GpuNumbering {
            minors: Vec::new(),
            by_bus: true,
            uuids: if whole { uuids.to_vec() } else { Vec::new() },
        }
    }

    /// Whether the configuration says which device files are GPUs.
    pub fn names_files(&self) -> bool {
        !self.minors.is_empty()
    }

    /// Numbers of all GPUs, whose minor numbers and UUIDs are given in NVML's order; an empty UUID is one that is not known. `None`: as
    /// with [`GpuNumbering::number`].
    pub fn number_each(&self, gpus: &[(Option<u32>, &str)]) -> Vec<Option<u8>> {
        if self.uuids.is_empty() {
            let minors: Vec<Option<u32>> = gpus.iter().map(|(minor, _)| *minor).collect();
            return self.number(&minors);
        }
        let place = |uuid: &str| self.uuids.iter().position(|known| known == uuid);
        let told: Vec<Option<usize>> = gpus.iter().map(|(_, uuid)| place(uuid)).collect();
        // Those that do not say who they are, are the ones that are missing.
        let mut rest = (0..self.uuids.len()).filter(|place| !told.contains(&Some(*place)));
        let number = |((_, uuid), told): (&(Option<u32>, &str), &Option<usize>)| {
            let silent = uuid.is_empty();
            u8::try_from(told.or_else(|| silent.then(|| rest.next())?)?).ok()
        };
        gpus.iter().zip(&told).map(number).collect()
    }

    /// Numbers of all GPUs, whose minor numbers are given in NVML's order. `None`: the workload manager does not manage it,
    /// or it does not say which device file is its own.
    pub fn number(&self, minors: &[Option<u32>]) -> Vec<Option<u8>> {
        let small = |index: usize| u8::try_from(index).ok();
        if self.by_bus {
            let mut next = 0;
            let listed = |minor: &Option<u32>| {
                self.minors.is_empty() || minor.is_none_or(|minor| self.minors.contains(&minor))
            };
            let mut count = |minor: &Option<u32>| {
                let own = listed(minor).then_some(next)?;
                next += 1;
                small(own)
            };
            return minors.iter().map(&mut count).collect();
        }
        if !self.minors.is_empty() {
            let told: Vec<Option<u8>> = minors.iter().map(|m| self.index((*m)?)).collect();
            // Those that do not say who they are, are the ones that are missing: all of them are lost.
            let places = (0..self.minors.len()).filter_map(small);
            let mut rest = places.filter(|place| !told.contains(&Some(*place)));
            let each = minors.iter().zip(&told);
            return each
                .map(|(minor, told)| told.or_else(|| minor.is_none().then(|| rest.next())?))
                .collect();
        }
        let mut order: Vec<u32> = minors.iter().copied().flatten().collect();
        order.sort_unstable();
        order.dedup();
        let whole = order.len() == minors.len();
        let rank = |minor: u32| order.binary_search(&minor).ok();
        let number = |(nvml, minor): (usize, &Option<u32>)| match minor {
            Some(minor) if whole => small(rank(*minor)?),
            _ => small(nvml),
        };
        minors.iter().enumerate().map(number).collect()
    }

    /// Number of a GPU by its minor number; `None` when the workload manager does not manage it.
    pub fn index(&self, minor: u32) -> Option<u8> {
        match self.minors.is_empty() {
            true => minor.try_into().ok(),
            false => self
                .minors
                .iter()
                .position(|&known| known == minor)?
                .try_into()
                .ok(),
        }
    }

    /// Minor number of a GPU by its number.
    pub fn minor(&self, index: u8) -> Option<u32> {
        match self.minors.is_empty() {
            true => Some(index.into()),
            false => self.minors.get(usize::from(index)).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_configuration_counts() {
        let swapped = GpuNumbering::new(Some(vec![4, 5, 0, 1]), false);
        assert_eq!((swapped.index(4), swapped.index(1)), (Some(0), Some(3)));
        assert_eq!((swapped.minor(2), swapped.minor(4)), (Some(0), None));
        assert_eq!(swapped.index(2), None);
        assert!(swapped.names_files());
    }

    #[test]
    fn uuids_count_where_all_are_known() {
        let list = |uuids: &[&str]| uuids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let swapped = GpuNumbering::of_uuids(&list(&["b", "a", "c"]));
        let gpus = [(Some(0), "a"), (Some(1), "b"), (Some(2), "x"), (None, "")];
        let numbers = swapped.number_each(&gpus);
        assert_eq!(numbers, [Some(1), Some(0), None, Some(2)]);
        let by_bus = GpuNumbering::of_uuids(&list(&["b", ""]));
        let gpus = [(Some(7), "a"), (Some(3), "b")];
        assert_eq!(by_bus.number_each(&gpus), [Some(0), Some(1)]);
        let minors = GpuNumbering::new(Some(vec![3, 7]), false);
        assert_eq!(minors.number_each(&gpus), [Some(1), Some(0)]);
    }

    #[test]
    fn without_files_the_numbers_are_the_same() {
        let none = GpuNumbering::identity();
        assert_eq!(none, GpuNumbering::new(None, false));
        assert_eq!((none.index(7), none.minor(7)), (Some(7), Some(7)));
        assert_eq!(none.index(70_000), None);
        assert!(!none.names_files());
    }
}
