//! Executable graphs: what they touch is read from their nodes when they are made or changed. What cannot be read is missed, and costs time.
//! The driver looks at the addresses in them then, so that waits while the process is parked.

use gpuos_driver::{GraphNode, Kernel, Kernel2, Memcpy3D, Memset};

use super::{Call, own};
use crate::graphs::{Nodes, Word};
use crate::heat;
use crate::memory::{self, Memory};
use crate::vmm::{self, Answer};
use crate::{gate, pointer};

/// The most nodes of a graph that are read, and how deep graphs inside graphs are.
const NODES: usize = 16_384;
const DEEP: u32 = 4;

/// `CUgraphNodeType`.
const KERNEL: u32 = 0;
const COPY: u32 = 1;
const FILL: u32 = 2;
const GRAPH: u32 = 4;

fn of_copy(memory: &Memory, copy: &Memcpy3D) -> Vec<Word> {
    let both = [copy.from.device, copy.to.device].into_iter();
    both.filter_map(|address| heat::word_at(memory, address, false))
        .collect()
}

fn of_fill(memory: &Memory, fill: &Memset) -> Vec<Word> {
    heat::word_at(memory, fill.to, false).into_iter().collect()
}

/// The words of a graph, with those of graphs inside it. What the driver does not tell is left out.
fn read(memory: &mut Memory, graph: u64, deep: u32, nodes: &mut Nodes) {
    let left = NODES.saturating_sub(nodes.len());
    for node in vmm::nodes(graph, left).unwrap_or_default() {
        let words = match vmm::kind_of(node) {
            Ok(KERNEL) => vmm::kernel_of(node).map(|kernel| heat::kernel_words(memory, &kernel)),
            Ok(COPY) => vmm::copy_of(node).map(|copy| of_copy(memory, &copy)),
            Ok(FILL) => vmm::fill_of(node).map(|fill| of_fill(memory, &fill)),
            Ok(GRAPH) if deep > 0 => {
                if let Ok(child) = vmm::child_of(node) {
                    read(memory, child, deep - 1, nodes);
                }
                continue;
            }
            _ => continue,
        };
        if let Ok(words) = words
            && !words.is_empty()
        {
            nodes.push((node, words));
        }
    }
}

fn set(exec: u64, graph: u64) {
    let mut memory = memory::lock();
    let mut nodes = Nodes::new();
    read(&mut memory, graph, DEEP, &mut nodes);
    memory.graphs.set(exec, nodes);
}

/// Makes a graph executable: the call gives it by its first argument.
fn made(call: &Call<'_>, to: u64, graph: u64) -> Answer<()> {
    let _inside = gate::enter();
    call.go()?;
    if let Some(exec) = pointer::take::<u64>(to) {
        set(exec, graph);
    }
    Ok(())
}

/// Changes a node of an executable graph.
fn changed(
    call: &Call<'_>,
    exec: u64,
    node: u64,
    words: impl FnOnce(&mut Memory) -> Option<Vec<Word>>,
) -> Answer<()> {
    let _inside = gate::enter();
    call.go()?;
    let mut memory = memory::lock();
    if let Some(words) = words(&mut memory) {
        memory.graphs.change(exec, node, words);
    }
    Ok(())
}

own! { false
    fn cuGraphInstantiate(call: to, graph, node, log, room) {
        made(call, to, graph)
    }
    fn cuGraphInstantiate_v2(call: to, graph, node, log, room) {
        made(call, to, graph)
    }
    fn cuGraphInstantiateWithFlags(call: to, graph, flags) {
        made(call, to, graph)
    }
    fn cuGraphInstantiateWithParams(call: to, graph, params) {
        made(call, to, graph)
    }
    fn cuGraphInstantiateWithParams_ptsz(call: to, graph, params) {
        made(call, to, graph)
    }
    fn cuGraphExecDestroy(call: exec) {
        call.go()?;
        memory::lock().graphs.forget(exec);
        Ok(())
    }
    fn cuGraphExecUpdate(call: exec, graph, node, result) {
        let _inside = gate::enter();
        call.go()?;
        set(exec, graph);
        Ok(())
    }
    fn cuGraphExecUpdate_v2(call: exec, graph, result) {
        let _inside = gate::enter();
        call.go()?;
        set(exec, graph);
        Ok(())
    }
    fn cuGraphExecKernelNodeSetParams(call: exec, node, params) {
        changed(call, exec, node, |memory| {
            let first = pointer::take::<Kernel>(params)?;
            let kernel = Kernel2 { first, ..Kernel2::default() };
            Some(heat::kernel_words(memory, &kernel))
        })
    }
    fn cuGraphExecKernelNodeSetParams_v2(call: exec, node, params) {
        changed(call, exec, node, |memory| {
            let kernel = pointer::take::<Kernel2>(params)?;
            Some(heat::kernel_words(memory, &kernel))
        })
    }
    fn cuGraphExecNodeSetParams(call: exec, node, params) {
        changed(call, exec, node, |memory| {
            let kind = pointer::take::<u32>(params)?;
            let params = (kind == KERNEL).then(|| pointer::take::<GraphNode>(params))??;
            Some(heat::kernel_words(memory, &params.kernel))
        })
    }
    fn cuGraphExecMemcpyNodeSetParams(call: exec, node, params, context) {
        changed(call, exec, node, |memory| Some(of_copy(memory, &pointer::take(params)?)))
    }
    fn cuGraphExecMemsetNodeSetParams(call: exec, node, params, context) {
        changed(call, exec, node, |memory| Some(of_fill(memory, &pointer::take(params)?)))
    }
    fn cuGraphExecChildGraphNodeSetParams(call: exec, node, child) {
        changed(call, exec, node, |memory| {
            let mut nodes = Nodes::new();
            read(memory, child, DEEP, &mut nodes);
            Some(nodes.into_iter().flat_map(|(_, words)| words).collect())
        })
    }
}
