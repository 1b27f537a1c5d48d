//! Graphs tell what they touch: it comes into the GPU's memory although no call names it.

use crate::common::Cuda;
use crate::shim::{MIB, moved, preloaded};

/// CUDA_KERNEL_NODE_PARAMS_v2 in words, and the places of the arguments.
struct Node {
    places: Vec<u64>,
    _values: Box<[u64]>,
    kernel: u64,
}

impl Node {
    fn new(kernel: u64, values: &[u64]) -> Node {
        let values: Box<[u64]> = values.into();
        let places = values.iter().map(|value| std::ptr::from_ref(value) as u64);
        Node {
            places: places.collect(),
            _values: values,
            kernel,
        }
    }

    fn words(&self) -> [u64; 9] {
        let pair = |low: u64, high: u64| low | high << 32;
        let places = self.places.as_ptr() as u64;
        [
            self.kernel,
            pair(1, 1),
            pair(1, 32),
            pair(1, 1),
            0,
            places,
            0,
            0,
            0,
        ]
    }
}

/// Whether the first extent of an allocation is in the GPU's memory. It is not moved any more after this.
fn is_near(cuda: &Cuda, at: u64) -> bool {
    let place = cuda.get("cuMemRetainAllocationHandle", &[at]);
    let mut prop = [0_u32; 8];
    let words = [prop.as_mut_ptr() as u64, place];
    cuda.ok("cuMemGetAllocationPropertiesFromHandle", &words);
    cuda.ok("cuMemRelease", &[place]);
    prop[2] == 1
}

/// Launches a graph that touches `hot`, which lies in host memory, and nothing else that does. On a machine with much else to do it takes
/// longer until that comes in, and another one is launched more often.
fn graph(cuda: &Cuda, change: impl Fn(&Cuda, u64, u64, u64)) {
    cuda.context(0);
    let near = cuda.alloc(16 * MIB);
    let comes_in = (0..4).any(|attempt| launched(cuda, near, 200 << (2 * attempt), &change));
    assert!(comes_in, "what the graph touches is the GPU's");
}

/// Whether what a graph touches is in the GPU's memory once it was launched so often.
fn launched(cuda: &Cuda, near: u64, times: u32, change: impl Fn(&Cuda, u64, u64, u64)) -> bool {
    let (fill, stream) = (cuda.kernel("fill"), cuda.stream());
    let hot = cuda.alloc(8 * MIB);
    let graph = cuda.get("cuGraphCreate", &[0]);
    let node = Node::new(fill, &[near, 1, 1024]);
    let params = node.words();
    let added = [graph, 0, 0, params.as_ptr() as u64];
    let node = cuda.get("cuGraphAddKernelNode_v2", &added);
    let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
    change(cuda, exec, node, hot);
    for _ in 0..times {
        cuda.ok("cuGraphLaunch", &[exec, stream]);
        cuda.ok("cuStreamSynchronize", &[stream]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    cuda.ok("cuGraphExecDestroy", &[exec]);
    is_near(cuda, hot)
}

fn comes_in(test: &str, change: impl Fn(&Cuda, u64, u64, u64)) {
    let said = preloaded(test, [64, 16], "memory=64M", &[], |cuda| {
        graph(cuda, change)
    });
    if let Some(said) = said {
        assert!(moved(&said) >= 2, "{said}");
    }
}

#[test]
fn a_kernel_of_a_graph_that_was_changed() {
    comes_in(
        "a_kernel_of_a_graph_that_was_changed",
        |cuda, exec, node, hot| {
            let fill = cuda.kernel("fill");
            let other = Node::new(fill, &[hot, 2, 2 * MIB]);
            let params = other.words();
            let words = [exec, node, params.as_ptr() as u64];
            cuda.ok("cuGraphExecKernelNodeSetParams_v2", &words);
        },
    );
}

#[test]
fn a_graph_that_became_another_one() {
    comes_in("a_graph_that_became_another_one", |cuda, exec, _, hot| {
        let graph = cuda.get("cuGraphCreate", &[0]);
        // CUDA_MEMSET_NODE_PARAMS.
        let fill = [hot, 0, 7 | 4 << 32, MIB, 1];
        let context = cuda.get("cuCtxGetCurrent", &[]);
        let words = [graph, 0, 0, fill.as_ptr() as u64, context];
        cuda.get("cuGraphAddMemsetNode", &words);
        cuda.ok("cuGraphExecUpdate_v2", &[exec, graph, 0]);
        cuda.ok("cuGraphDestroy", &[graph]);
    });
}
