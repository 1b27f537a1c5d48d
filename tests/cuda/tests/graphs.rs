//! Graphs: captured and made by hand.

use crate::common::{Cuda, INVALID, on};

fn words(cuda: &Cuda, from: u64, count: usize) -> Vec<u32> {
    let bytes = cuda.download(from, count * 4);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks(4).map(word).collect()
}

#[test]
fn what_two_streams_are_given_becomes_a_graph_that_runs_again() {
    on(
        "what_two_streams_are_given_becomes_a_graph_that_runs_again",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (stream, other) = (cuda.stream(), cuda.stream());
            let (fill, add) = (cuda.kernel("fill"), cuda.kernel("add"));
            let (a, b) = (cuda.alloc(4096), cuda.alloc(4096));
            cuda.ok("cuMemsetD8_v2", &[a, 0, 4096]);
            cuda.ok("cuMemsetD8_v2", &[b, 0, 4096]);
            cuda.ok("cuCtxSynchronize", &[]);
            let event = cuda.get("cuEventCreate", &[2]);
            let joined = cuda.get("cuEventCreate", &[2]);
            cuda.ok("cuStreamBeginCapture_v2", &[stream, 2]);
            cuda.launch(fill, stream, &[a, 1, 4]);
            cuda.ok("cuEventRecord", &[event, stream]);
            cuda.ok("cuStreamWaitEvent", &[other, event, 0]);
            cuda.launch(add, other, &[b, b, a, 4]);
            cuda.launch(add, stream, &[a, a, a, 4]);
            cuda.ok("cuEventRecord", &[joined, other]);
            cuda.ok("cuStreamWaitEvent", &[stream, joined, 0]);
            cuda.launch(add, stream, &[a, a, b, 4]);
            let mut graph = 0_u64;
            cuda.ok("cuStreamEndCapture", &[stream, &raw mut graph as u64]);
            // Captured is not done.
            cuda.ok("cuCtxSynchronize", &[]);
            assert_eq!(words(cuda, a, 8), [0; 8]);
            let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
            cuda.ok("cuGraphDestroy", &[graph]);
            for round in 1..=3 {
                cuda.ok("cuGraphLaunch", &[exec, stream]);
                cuda.ok("cuStreamSynchronize", &[stream]);
                // The other stream added a, which was 1 or 2 by then: the two branches race, as on a device, but here
                // the nodes run in the order in which they were captured where edges allow it.
                assert_eq!(words(cuda, b, 4), [round; 4]);
                assert_eq!(words(cuda, a, 4), [2 + round; 4]);
            }
        },
    );
}

#[test]
fn a_capture_that_was_not_joined_is_refused() {
    on(
        "a_capture_that_was_not_joined_is_refused",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (stream, other) = (cuda.stream(), cuda.stream());
            let a = cuda.alloc(4096);
            let event = cuda.get("cuEventCreate", &[2]);
            cuda.ok("cuStreamBeginCapture_v2", &[stream, 0]);
            assert_eq!(cuda.code("cuStreamBeginCapture_v2", &[stream, 0]), 401);
            assert_eq!(cuda.code("cuStreamSynchronize", &[stream]), 900);
            assert_eq!(cuda.code("cuStreamQuery", &[stream]), 900);
            cuda.launch(cuda.kernel("fill"), stream, &[a, 1, 4]);
            cuda.ok("cuEventRecord", &[event, stream]);
            assert_eq!(cuda.code("cuEventSynchronize", &[event]), 907);
            cuda.ok("cuStreamWaitEvent", &[other, event, 0]);
            cuda.launch(cuda.kernel("fill"), other, &[a, 2, 4]);
            let mut graph = 1_u64;
            let out = &raw mut graph as u64;
            assert_eq!(cuda.code("cuStreamEndCapture", &[other, out]), 903);
            assert_eq!(cuda.code("cuStreamEndCapture", &[stream, out]), 904);
            assert_eq!(graph, 0);
            assert_eq!(cuda.code("cuStreamEndCapture", &[stream, out]), 401);
            // Both streams work again.
            cuda.ok("cuStreamSynchronize", &[stream]);
            cuda.ok("cuStreamSynchronize", &[other]);
        },
    );
}

/// CUDA_KERNEL_NODE_PARAMS_v2 in words.
fn node(kernel: u64, params: &[*const u64]) -> [u64; 8] {
    let pair = |low: u64, high: u64| low | high << 32;
    [
        kernel,
        pair(1, 1),
        pair(1, 32),
        pair(1, 1),
        0,
        params.as_ptr() as u64,
        0,
        0,
    ]
}

#[test]
fn a_graph_made_by_hand_keeps_to_its_edges_and_takes_other_arguments() {
    let test = "a_graph_made_by_hand_keeps_to_its_edges_and_takes_other_arguments";
    on(test, "memory=64M", |cuda| {
        cuda.context(0);
        let a = cuda.alloc(4096);
        let fill = cuda.kernel("fill");
        let graph = cuda.get("cuGraphCreate", &[0]);
        let add = |after: &[u64], value: u64| {
            let args = [a, value, 4];
            let params: Vec<*const u64> = args.iter().map(std::ptr::from_ref).collect();
            let node = node(fill, &params);
            let list = after.as_ptr() as u64;
            let rest = [graph, list, after.len() as u64, node.as_ptr() as u64];
            cuda.get("cuGraphAddKernelNode_v2", &rest)
        };
        let first = add(&[], 1);
        let second = add(&[], 2);
        // The second runs first.
        let edge = |from: u64, to: u64| {
            let (from, to) = ([from], [to]);
            cuda.code(
                "cuGraphAddDependencies",
                &[graph, from.as_ptr() as u64, to.as_ptr() as u64, 1],
            )
        };
        assert_eq!(edge(second, first), 0);
        assert_eq!(edge(second, first), INVALID);
        let mut count = 0_u64;
        cuda.ok("cuGraphGetNodes", &[graph, 0, &raw mut count as u64]);
        assert_eq!(count, 2);
        let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        cuda.ok("cuGraphLaunch", &[exec, 0]);
        assert_eq!(words(cuda, a, 4), [1; 4]);
        // Another value, in what is launched only.
        let args = [a, 7, 2];
        let params: Vec<*const u64> = args.iter().map(std::ptr::from_ref).collect();
        let other = node(fill, &params);
        cuda.ok(
            "cuGraphExecKernelNodeSetParams_v2",
            &[exec, first, other.as_ptr() as u64],
        );
        cuda.ok("cuGraphLaunch", &[exec, 0]);
        assert_eq!(words(cuda, a, 4), [7, 7, 2, 2]);
        // What a node has can be asked for.
        let mut has = [0_u64; 9];
        cuda.ok(
            "cuGraphKernelNodeGetParams_v2",
            &[first, has.as_mut_ptr() as u64],
        );
        // SAFETY: the function gave a list of pointers to three arguments.
        let value = unsafe { *((*((has[5] + 8) as *const u64)) as *const u32) };
        assert_eq!((has[0], value), (fill, 1));
        // A circle cannot be launched.
        assert_eq!(edge(first, second), 0);
        let mut out = 0_u64;
        let circle = cuda.code(
            "cuGraphInstantiateWithFlags",
            &[&raw mut out as u64, graph, 0],
        );
        assert_eq!(circle, INVALID);
        cuda.ok("cuGraphExecDestroy", &[exec]);
        cuda.ok("cuGraphDestroy", &[graph]);
    });
}
