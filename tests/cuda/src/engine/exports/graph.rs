//! Graphs: making, looking, instantiating, launching.

use std::ffi::{c_char, c_uint, c_ulonglong};

use super::{cuda, enqueue};
use crate::abi::{Answer, code};
use crate::engine::driver::driver;
use crate::engine::graph::Graph;
use crate::engine::work::Work;
use crate::pointer::{In, Out};

fn instantiate(out: &Out<u64>, graph: u64) -> Answer<()> {
    let driver = driver()?;
    let exec = driver.graphs.get(graph)?.instantiate()?;
    out.set(driver.execs.add(exec))
}

fn update(exec: u64, graph: u64) -> Answer<()> {
    let driver = driver()?;
    let other = driver.graphs.get(graph)?.instantiate()?;
    driver.execs.get(exec)?.update(&other)
}

/// Gives a list in CUDA's form: without a place for it only its length.
fn list(handles: &[u64], out: &Out<u64>, count: &Out<usize>) -> Answer<()> {
    if !out.is_null() {
        let room = count.get()?;
        for index in 0..room {
            out.put(index, handles.get(index).copied().unwrap_or(0))?;
        }
        return count.set(handles.len().min(room));
    }
    count.set(handles.len())
}

fn edges(graph: u64, from: &In<u64>, to: &In<u64>, count: usize) -> Answer<()> {
    let graph = driver()?.graphs.get(graph)?;
    for (from, to) in from.list(count)?.into_iter().zip(to.list(count)?) {
        graph.edge(from, to)?;
    }
    Ok(())
}

cuda! {
    fn cuGraphCreate(out: Out<u64>, flags: c_uint) {
        match flags {
            0 => out.set(driver()?.graphs.add(Graph::new())),
            _ => Err(code::INVALID),
        }
    }
    fn cuGraphDestroy(graph: u64) {
        driver()?.graphs.remove(graph).map(|_| ())
    }
    fn cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        edges(graph, &from, &to, count)
    }
    fn cuGraphGetNodes(graph: u64, out: Out<u64>, count: Out<usize>) {
        list(&driver()?.graphs.get(graph)?.handles(false), &out, &count)
    }
    fn cuGraphGetRootNodes(graph: u64, out: Out<u64>, count: Out<usize>) {
        list(&driver()?.graphs.get(graph)?.handles(true), &out, &count)
    }
    fn cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
        let edges = driver()?.graphs.get(graph)?.edges();
        let (starts, ends): (Vec<u64>, Vec<u64>) = edges.into_iter().unzip();
        if from.is_null() != to.is_null() {
            return Err(code::INVALID);
        }
        let room = count.get().unwrap_or(0);
        list(&starts, &from, &count)?;
        if !to.is_null() {
            count.set(room)?;
        }
        list(&ends, &to, &count)
    }
    fn cuGraphNodeGetType(node: u64, out: Out<c_uint>) {
        let driver = driver()?;
        let graph = driver.graphs.get(*driver.nodes.get(node)?)?;
        out.set(match graph.work(node)? {
            Work::Kernel(_) => 0,
            Work::Copy(_) | Work::Upload(..) => 1,
            Work::Fill(_) => 2,
            Work::Call(_) => 3,
            _ => 5,
        })
    }
    fn cuGraphInstantiate(out: Out<u64>, graph: u64, _node: Out<u64>, _log: *mut c_char, _room: usize) {
        instantiate(&out, graph)
    }
    fn cuGraphInstantiate_v2(out: Out<u64>, graph: u64, _node: Out<u64>, _log: *mut c_char, _room: usize) {
        instantiate(&out, graph)
    }
    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, _flags: c_ulonglong) {
        instantiate(&out, graph)
    }
    fn cuGraphUpload(exec: u64, stream: u64) / cuGraphUpload_ptsz {
        driver()?.execs.get(exec)?;
        super::stream_of(stream).map(|_| ())
    }
    fn cuGraphLaunch(exec: u64, stream: u64) / cuGraphLaunch_ptsz {
        let work = driver()?.execs.get(exec)?.snapshot();
        enqueue(stream, work).map(|_| ())
    }
    fn cuGraphExecUpdate(exec: u64, graph: u64, _node: Out<u64>, result: Out<c_uint>) {
        update(exec, graph)?;
        result.offer(0);
        Ok(())
    }
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, result: Out<[u64; 3]>) {
        update(exec, graph)?;
        result.offer([0; 3]);
        Ok(())
    }
    fn cuGraphExecDestroy(exec: u64) {
        driver()?.execs.remove(exec).map(|_| ())
    }
}
