//! Which domains a `[[reserve]]` keeps right now: those with the least on them, so that what is
//! broken into drains first; of equals the last ones, because jobs are placed from the first on.
use super::book::Scope;

/// The state of one `[[reserve]]`.
#[derive(Debug)]
pub(super) struct Reserved {
    /// Its index in [`super::Rules::reserves`].
    pub index: usize,
    pub scope: usize,
    /// Whether a node can be a part of it.
    part: Vec<bool>,
    /// The domains with such a node.
    domains: Vec<u32>,
    /// Whether a domain is kept.
    reserved: Vec<bool>,
    /// Load and domain of those that could be kept.
    order: Vec<(u32, u32)>,
    in_service: Vec<bool>,
}

impl Reserved {
    pub fn new(index: usize, scope: usize, domains: &Scope, part: Vec<bool>) -> Reserved {
        let nodes = domains.of.iter().zip(&part);
        let mut those: Vec<u32> = nodes.filter(|(_, part)| **part).map(|(d, _)| *d).collect();
        those.sort_unstable();
        those.dedup();
        Reserved {
            index,
            scope,
            part,
            reserved: vec![false; domains.names.len()],
            order: Vec::with_capacity(those.len()),
            in_service: vec![false; domains.names.len()],
            domains: those,
        }
    }

    /// Keeps nothing.
    pub fn none(&mut self) {
        self.reserved.fill(false);
    }

    /// Keeps `count` domains that have a node in service.
    pub fn choose(&mut self, count: u32, scope: &Scope, in_service: &dyn Fn(u32) -> bool) {
        self.reserved.fill(false);
        self.in_service.fill(false);
        for (node, domain) in scope.of.iter().enumerate() {
            let domain = *domain as usize;
            if self.part[node] && !self.in_service[domain] {
                self.in_service[domain] = in_service(node as u32);
            }
        }
        self.order.clear();
        for &domain in &self.domains {
            if self.in_service[domain as usize] {
                self.order
                    .push((scope.busy[domain as usize], u32::MAX - domain));
            }
        }
        let count = count as usize;
        if count < self.order.len() && count > 0 {
            self.order.select_nth_unstable(count - 1);
        }
        for (_, domain) in self.order.iter().take(count) {
            self.reserved[(u32::MAX - domain) as usize] = true;
        }
    }

    /// Whether a node is kept.
    pub fn keeps(&self, node: usize, domain: usize) -> bool {
        self.part[node] && self.reserved[domain]
    }
}
