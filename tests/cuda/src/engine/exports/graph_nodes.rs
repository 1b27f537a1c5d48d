//! Nodes of graphs.

use std::ffi::c_void;
use std::sync::Arc;

use super::{copy, cuda, launch};
use crate::abi::{
    Answer, HostNode, KernelNode, KernelNode2, MEMORY_DEVICE, Memcpy3D, MemsetNode, Side3D, code,
};
use crate::engine::driver::driver;
use crate::engine::graph::Graph;
use crate::engine::work::{Call, Work};
use crate::pointer::{In, Out};

fn add(out: &Out<u64>, graph: u64, after: &In<u64>, count: usize, work: Work) -> Answer<()> {
    let driver = driver()?;
    let after = if count == 0 {
        Vec::new()
    } else {
        after.list(count)?
    };
    let node = driver.graphs.get(graph)?.add(driver, graph, work, &after)?;
    out.set(node)
}

fn kernel(node: &KernelNode) -> Answer<Work> {
    launch::launch(
        node.function,
        node.dims,
        node.shared,
        node.params,
        node.extra,
    )
}

fn kernel2(node: &KernelNode2) -> Answer<Work> {
    let function = match node.first.function {
        0 => node.kernel,
        function => function,
    };
    kernel(&KernelNode {
        function,
        ..node.first
    })
}

fn set(node: MemsetNode) -> Answer<Work> {
    let pitch = if node.height > 1 { node.pitch } else { 0 };
    if !matches!(node.element, 1 | 2 | 4) {
        return Err(code::INVALID);
    }
    copy::fill(
        node.dst,
        pitch,
        node.value,
        node.element,
        [node.width, node.height],
    )
}

fn call(node: HostNode) -> Answer<Work> {
    let function = node.function.ok_or(code::INVALID)?;
    Ok(Work::Call(Call {
        function,
        data: node.data,
    }))
}

fn graph_of(node: u64) -> Answer<Arc<Graph>> {
    let driver = driver()?;
    driver.graphs.get(*driver.nodes.get(node)?)
}

/// Changes a kernel node, of a graph or of one that can be launched, to another launch.
fn change(node: u64, exec: Option<u64>, work: Work) -> Answer<()> {
    match exec {
        None => graph_of(node)?.set(node, work),
        Some(exec) => driver()?.execs.get(exec)?.set(node, work),
    }
}

cuda! {
    fn cuGraphAddKernelNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<KernelNode>) {
        add(&out, graph, &after, count, kernel(&node.get()?)?)
    }
    fn cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<KernelNode2>) {
        add(&out, graph, &after, count, kernel2(&node.get()?)?)
    }
    fn cuGraphAddMemcpyNode(
        out: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        node: In<Memcpy3D>,
        _context: u64,
    ) {
        add(&out, graph, &after, count, copy::rows3(&node)?)
    }
    fn cuGraphAddMemsetNode(
        out: Out<u64>,
        graph: u64,
        after: In<u64>,
        count: usize,
        node: In<MemsetNode>,
        _context: u64,
    ) {
        add(&out, graph, &after, count, set(node.get()?)?)
    }
    fn cuGraphAddHostNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<HostNode>) {
        add(&out, graph, &after, count, call(node.get()?)?)
    }
    fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize) {
        add(&out, graph, &after, count, Work::Nothing)
    }
    fn cuGraphKernelNodeSetParams(node: u64, params: In<KernelNode>) {
        change(node, None, kernel(&params.get()?)?)
    }
    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelNode2>) {
        change(node, None, kernel2(&params.get()?)?)
    }
    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: In<KernelNode>) {
        change(node, Some(exec), kernel(&params.get()?)?)
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<KernelNode2>) {
        change(node, Some(exec), kernel2(&params.get()?)?)
    }
    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: In<MemsetNode>, _context: u64) {
        change(node, Some(exec), set(params.get()?)?)
    }
    fn cuGraphMemsetNodeGetParams(node: u64, out: Out<MemsetNode>) {
        let Work::Fill(fill) = graph_of(node)?.work(node)? else {
            return Err(code::INVALID);
        };
        out.set(MemsetNode {
            dst: fill.to.start,
            pitch: fill.to.pitch as usize,
            value: fill.value,
            element: fill.element,
            width: fill.width as usize,
            height: fill.height as usize,
        })
    }
    // Where the two sides begin; how they lie is not told.
    fn cuGraphMemcpyNodeGetParams(node: u64, out: Out<Memcpy3D>) {
        let Work::Copy(copy) = graph_of(node)?.work(node)? else {
            return Err(code::INVALID);
        };
        let side = |start: u64| Side3D {
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            kind: MEMORY_DEVICE,
            host: 0,
            device: start,
            array: 0,
            reserved: 0,
            pitch: 0,
            height: 0,
        };
        out.set(Memcpy3D {
            src: side(copy.from.start),
            dst: side(copy.to.start),
            width: copy.width as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        })
    }
    // The values of the arguments, where the node keeps them: they last as long as the node is not changed.
    fn cuGraphKernelNodeGetParams_v2(node: u64, out: Out<KernelNode2>) {
        let Work::Kernel(launch) = graph_of(node)?.work(node)? else {
            return Err(code::INVALID);
        };
        let first = KernelNode {
            function: launch.function,
            dims: launch.dims,
            shared: launch.shared,
            params: launch.args.pointers(),
            extra: std::ptr::null::<*const c_void>(),
        };
        out.set(KernelNode2 { first, kernel: 0, context: 0 })
    }
}
