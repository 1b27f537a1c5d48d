//! STUB
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::{NodeDomains, Scheme, Set, arrange};
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub index: NodeIndex,
    pub nodes: u16,
    pub set: Vec<NodeIndex>,
    pub parity: u16,
    pub newest: CheckpointId,
}
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    pub index_of_seat: Vec<NodeIndex>,
    pub sets: Vec<Set>,
    pub notes: Vec<String>,
}
pub fn draw(seats: &[(Option<Claim>, NodeDomains)], scheme: Scheme) -> Result<Roster, String> {
    let n = seats.len();
    let mut taken: Vec<Option<NodeIndex>> = seats
        .iter()
        .map(|(c, _)| c.as_ref().map(|c| c.index))
        .collect();
    let used: Vec<u16> = taken.iter().flatten().map(|i| i.0).collect();
    let mut free = (0..n as u16).filter(|i| !used.contains(i));
    for t in &mut taken {
        if t.is_none() {
            *t = free.next().map(NodeIndex);
        }
    }
    let doms: Vec<NodeDomains> = seats.iter().map(|(_, d)| d.clone()).collect();
    let sets = arrange(&doms, scheme).map_err(|e| e.to_string())?;
    Ok(Roster {
        index_of_seat: taken.into_iter().flatten().collect(),
        sets,
        notes: vec![],
    })
}
