//! One level of domains: dealing them out like cards.

/// The set of each node. The nodes of a domain follow each other in the deal, largest domains first, so they come into different
/// sets as long as no domain has more nodes than there are `sets`, and the sizes of the sets differ by one at most.
pub(super) fn deal(domain: &[usize], sizes: &[usize], sets: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..domain.len()).collect();
    order.sort_by_key(|node| (usize::MAX - sizes[domain[*node]], domain[*node], *node));
    let mut set_of = vec![0; domain.len()];
    for (card, node) in order.into_iter().enumerate() {
        set_of[node] = card % sets;
    }
    set_of
}
