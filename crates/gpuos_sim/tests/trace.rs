//! Traces are read strictly: what is wrong is told with its place.

use gpuos_placement::frag::Request;
use gpuos_sim::trace::{Nodes, jobs, nodes};

const NODES: &str =
    "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\nb,96000,393216,8,G2\n";
const HEAD: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";

fn cluster() -> Nodes {
    nodes(NODES).expect("a good node list")
}

#[test]
fn good_traces_are_read() {
    let cluster = cluster();
    assert_eq!(cluster.models, ["P100", "G2"]);
    assert_eq!(cluster.milli(), 10_000);
    assert_eq!(cluster.nodes[1].model, 1);
    let text = format!(
        "{HEAD}p1,12000,16384,1,460,,LS,Running,5,65,5\r\n\
         p2,1000,100,8,1000,T4|G2,LS,Running,,,\r\n\
         p3,1000,100,0,0,G2,BE,Failed,7,7,7\r\n"
    );
    let jobs = jobs(&text, &cluster).expect("a good job list");
    let first = Request {
        cpu: 12_000,
        memory: 16_384,
        gpus: 1,
        share: 460,
        models: u64::MAX,
    };
    assert_eq!((jobs[0].request, jobs[0].lifetime), (first, Some(60)));
    // T4 is on no node here; a job without GPUs may run anywhere.
    assert_eq!((jobs[1].request.models, jobs[1].lifetime), (2, None));
    assert_eq!(
        (jobs[2].request.models, jobs[2].lifetime),
        (u64::MAX, Some(0))
    );
    // The short form of the published lists.
    let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,12000,16384,1,460\n";
    assert_eq!(
        gpuos_sim::trace::jobs(text, &cluster).map(|j| j[0].request),
        Ok(first)
    );
}

#[test]
fn wrong_traces_are_refused_with_line_column_and_reason() {
    let cluster = cluster();
    for (line, message) in [
        ("p,1,1,1", "line 2, column 7: 4 fields; the heading has 11"),
        (
            "p,1,1,1,500,,,,,,,,",
            "line 2, column 19: 13 fields; the heading has 11",
        ),
        (",1,1,1,500,,,,,,", "line 2, column 1: name is empty"),
        (
            "p,x,1,1,500,,,,,,",
            "line 2, column 3: cpu_milli is \"x\"; write a whole number",
        ),
        (
            "p,+1,1,1,500,,,,,,",
            "line 2, column 3: cpu_milli is \"+1\"; write a whole number",
        ),
        (
            "p,1,-1,1,500,,,,,,",
            "line 2, column 5: memory_mib is \"-1\"; write a whole number",
        ),
        (
            "p,1,9999999999,1,500,,,,,,",
            "line 2, column 5: memory_mib is 9999999999; no machine has that much",
        ),
        (
            "p,1,1,17,1000,,,,,,",
            "line 2, column 7: 17 GPUs; a job takes 0 to 16",
        ),
        (
            "p,1,1,1,0,,,,,,",
            "line 2, column 9: gpu_milli is 1 to 1000 for a job of one GPU",
        ),
        (
            "p,1,1,1,1001,,,,,,",
            "line 2, column 9: gpu_milli is 1 to 1000 for a job of one GPU",
        ),
        (
            "p,1,1,2,500,,,,,,",
            "line 2, column 9: a job of several GPUs takes them whole: gpu_milli is 1000",
        ),
        (
            "p,1,1,0,5,,,,,,",
            "line 2, column 9: a job without GPUs has gpu_milli 0",
        ),
        (
            "p,1,1,1,500,,,,9,8,",
            "line 2, column 18: deletion_time 8 is before creation_time 9",
        ),
        (
            "p,1,1,1,500,,,,9,8.5,",
            "line 2, column 18: deletion_time is \"8.5\"; write a whole number",
        ),
        (
            "p,1,1,1,5,,,,,,\np,1,1,1,5,,,,,,",
            "line 3, column 1: p is in the list twice",
        ),
        (
            "p,1,1,0,0,,,,,,",
            "line 2, column 1: the file ends, and there was no job with a GPU",
        ),
    ] {
        let error = jobs(&format!("{HEAD}{line}\n"), &cluster).expect_err(line);
        assert_eq!(error.to_string(), message, "{line}");
    }
    for (text, message) in [
        (
            "",
            "line 1, column 1: the heading is \"\"; it has to start with name,cpu_milli,memory_mib,num_gpu,gpu_milli",
        ),
        (
            "name,cpu_milli\n",
            "line 1, column 1: the heading is \"name,cpu_milli\"; it has to start with name,cpu_milli,memory_mib,num_gpu,gpu_milli",
        ),
        (
            HEAD,
            "line 1, column 1: the file ends, and there was no job with a GPU",
        ),
    ] {
        assert_eq!(jobs(text, &cluster).expect_err(text).to_string(), message);
    }
    for (row, message) in [
        (
            "a,1,1,17,X",
            "line 2, column 7: 17 GPUs; a node has 0 to 16",
        ),
        (
            "a,1,1,1,",
            "line 2, column 9: no GPU model, although the node has GPUs",
        ),
        (
            "a,1,1,0,",
            "line 2, column 1: the file ends, and there was no node with a GPU",
        ),
        (
            "a,1,1,1,X\na,1,1,1,X",
            "line 3, column 1: a is in the list twice",
        ),
    ] {
        let text = format!("sn,cpu_milli,memory_mib,gpu,model\n{row}\n");
        assert_eq!(nodes(&text).expect_err(row).to_string(), message);
    }
    let many: String = (0..65).map(|n| format!("n{n},1,1,1,M{n}\n")).collect();
    let text = format!("sn,cpu_milli,memory_mib,gpu,model\n{many}");
    let message = "line 66, column 11: one GPU model too many; 64 can be told apart";
    assert_eq!(nodes(&text).expect_err("65 models").to_string(), message);
}
