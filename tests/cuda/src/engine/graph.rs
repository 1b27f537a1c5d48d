//! Graphs: pieces of work and what each waits for, made by hand or captured from streams.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Answer, code};
use crate::engine::driver::Driver;
use crate::engine::work::Work;

/// A graph.
pub(crate) struct Graph {
    nodes: Mutex<Vec<Node>>,
}

#[derive(Clone)]
struct Node {
    handle: u64,
    work: Work,
    after: Vec<u64>,
}

/// A graph that can be launched: the work of its nodes in an order that keeps to the edges.
pub(crate) struct Exec {
    work: Mutex<Vec<(u64, Work)>>,
}

/// What a stream captures.
#[derive(Clone)]
pub(crate) struct Capture {
    /// Handle of the graph.
    pub(crate) graph: u64,
    /// Whether the capture was begun in this stream, and not only waited for.
    pub(crate) origin: bool,
    /// The nodes that the next one waits for.
    pub(crate) tails: Vec<u64>,
    /// A number of this capture.
    pub(crate) id: u64,
}

impl Graph {
    pub(crate) fn new() -> Graph {
        Graph {
            nodes: Mutex::new(Vec::new()),
        }
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node that waits for others of this graph. `own` is the graph's handle.
    pub(crate) fn add(&self, driver: &Driver, own: u64, work: Work, after: &[u64]) -> Answer<u64> {
        let mut nodes = self.nodes();
        let known = |handle: &u64| nodes.iter().any(|node| node.handle == *handle);
        if !after.iter().all(known) {
            return Err(code::INVALID);
        }
        let handle = driver.nodes.add(own);
        nodes.push(Node {
            handle,
            work,
            after: after.to_vec(),
        });
        Ok(handle)
    }

    /// Lets `to` wait for `from`.
    pub(crate) fn edge(&self, from: u64, to: u64) -> Answer<()> {
        let mut nodes = self.nodes();
        if from == to || !nodes.iter().any(|node| node.handle == from) {
            return Err(code::INVALID);
        }
        let node = nodes.iter_mut().find(|node| node.handle == to);
        let after = &mut node.ok_or(code::INVALID)?.after;
        if after.contains(&from) {
            return Err(code::INVALID);
        }
        after.push(from);
        Ok(())
    }

    /// The nodes' handles; only those that wait for nothing, where `roots` are wanted.
    pub(crate) fn handles(&self, roots: bool) -> Vec<u64> {
        let nodes = self.nodes();
        let wanted = nodes.iter().filter(|node| !roots || node.after.is_empty());
        wanted.map(|node| node.handle).collect()
    }

    /// The edges, from and to.
    pub(crate) fn edges(&self) -> Vec<(u64, u64)> {
        let nodes = self.nodes();
        let of = |node: &Node| {
            node.after
                .iter()
                .map(|from| (*from, node.handle))
                .collect::<Vec<_>>()
        };
        nodes.iter().flat_map(of).collect()
    }

    /// What a node does.
    pub(crate) fn work(&self, handle: u64) -> Answer<Work> {
        let nodes = self.nodes();
        let node = nodes.iter().find(|node| node.handle == handle);
        Ok(node.ok_or(code::INVALID)?.work.clone())
    }

    /// Changes what a node does.
    pub(crate) fn set(&self, handle: u64, work: Work) -> Answer<()> {
        let mut nodes = self.nodes();
        let node = nodes.iter_mut().find(|node| node.handle == handle);
        node.ok_or(code::INVALID)?.work = work;
        Ok(())
    }

    /// Nodes that are before these, and these.
    pub(crate) fn before(&self, handles: &[u64]) -> BTreeSet<u64> {
        let nodes = self.nodes();
        let mut found: BTreeSet<u64> = handles.iter().copied().collect();
        let mut open: Vec<u64> = handles.to_vec();
        while let Some(handle) = open.pop() {
            let node = nodes.iter().find(|node| node.handle == handle);
            for before in node.map_or(&[][..], |node| &node.after) {
                if found.insert(*before) {
                    open.push(*before);
                }
            }
        }
        found
    }

    /// Something that can be launched; an error for a graph with a circle.
    pub(crate) fn instantiate(&self) -> Answer<Exec> {
        let mut rest: Vec<Node> = self.nodes().clone();
        let mut done = BTreeSet::new();
        let mut work = Vec::new();
        while !rest.is_empty() {
            let ready = |node: &Node| node.after.iter().all(|before| done.contains(before));
            let (now, later): (Vec<Node>, Vec<Node>) = rest.into_iter().partition(ready);
            if now.is_empty() {
                return Err(code::INVALID);
            }
            for node in now {
                done.insert(node.handle);
                work.push((node.handle, node.work));
            }
            rest = later;
        }
        Ok(Exec {
            work: Mutex::new(work),
        })
    }
}

impl Exec {
    /// Changes what a node does from the next launch on.
    pub(crate) fn set(&self, handle: u64, work: Work) -> Answer<()> {
        let mut all = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let node = all.iter_mut().find(|(node, _)| *node == handle);
        node.ok_or(code::INVALID)?.1 = work;
        Ok(())
    }

    /// Has every node do what that in its place does in another one, which has as many.
    pub(crate) fn update(&self, other: &Exec) -> Answer<()> {
        let new = other.work.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if own.len() != new.len() {
            return Err(code::INVALID);
        }
        for (own, new) in own.iter_mut().zip(new.iter()) {
            own.1 = new.1.clone();
        }
        Ok(())
    }

    /// The work as it is now.
    pub(crate) fn snapshot(&self) -> Work {
        let all = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        Work::Graph(Arc::new(all.clone()))
    }
}
