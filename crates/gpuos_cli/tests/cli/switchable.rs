//! MIG-switchable GPUs, which are in GRES `gpu` and in GRES `gpuos`: what is taken of one by jobs of the other.

use serde_json::json;

use crate::site::Site;
use crate::slices::CONFIG;

/// Nodes with GPUs 0 to 5, of which 4 and 5 are in the pool and 5 is MIG-switchable. On n1 job 31 has it whole, on n2 job 32 has a slice.
fn site() -> Site {
    let site = Site::new("24.11.5");
    let switchable = CONFIG.replace("gpus = \"4-5\"", "gpus = \"4-5\"\nswitchable = \"5\"");
    site.file("gpuos.toml", &switchable);
    let nodes = [
        ("n1", "gpu:h100:1(IDX:4),gpuos:h100-80gb:0(IDX:N/A)"),
        ("n2", "gpu:h100:0(IDX:N/A),gpuos:h100-80gb:1(IDX:8)"),
    ]
    .map(|(node, used)| {
        format!(
            "NodeName={node} Arch=x86_64 CoresPerSocket=8\n   CPUAlloc=4 CPUEfctv=16 CPUTot=16\n   \
             Gres=gpu:h100:5(S:0),gpuos:h100-80gb:16(S:0)\n   GresUsed={used}\n   RealMemory=1000 AllocMem=50 Sockets=2 \
             Boards=1\n   State=MIXED ThreadsPerCore=1 Weight=1\n   Partitions=main\n\n"
        )
    });
    site.file("nodes.txt", &nodes.concat());
    let job = |id: u32, node: &str, gres: &str, asked: &str, hour: u32| {
        format!(
            "JobId={id} JobName=a\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
             Requeue=1 Restarts=0 BatchFlag=1\n   RunTime=01:00:00 TimeLimit=02:00:00\n   \
             StartTime=2026-11-20T19:00:00 EndTime=2026-11-20T{hour}:00:00\n   Partition=main\n   NodeList={node}\n   \
             NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1\n     Nodes={node} CPU_IDs=0 Mem=10 GRES={gres}\n   \
             TresPerNode={asked}\n"
        )
    };
    let whole = job(31, "n1", "gpu:h100:1(IDX:4)", "gres/gpu:h100:1", 21);
    let slice = job(
        32,
        "n2",
        "gpuos:h100-80gb:1(IDX:8)",
        "gres/gpuos:h100-80gb:1",
        22,
    );
    site.file("jobs.txt", &(whole + &slice));
    site
}

fn ask(site: &Site, args: &[&str]) -> serde_json::Value {
    let dir = format!("--runtime-dir={}", site.path("nowhere"));
    let dir = [dir.as_str()];
    let dir = if args[0] == "mig" { &dir[..] } else { &[] };
    site.run(&[args, &["--json"], dir].concat()).json()
}

#[test]
fn a_gpu_that_is_whole_has_no_free_slices() {
    let site = site();
    let json = ask(&site, &["mig", "plan", "7g.80gb", "n1"]);
    assert_eq!(json["place"][0]["instances"][0]["gpu"], 4, "{json}");
    let json = ask(&site, &["mig", "plan", "7g.80gb:2", "n1"]);
    assert_eq!(json["fits"], false, "{json}");
    let free = &json["waits"][0]["free"];
    assert_eq!(free[1], json!({ "gpu": 5, "slices": [] }), "{json}");
    assert_eq!(
        json["forecast"],
        json!({ "at": "2026-11-20T21:00:00", "jobs": ["31"] }),
        "{json}"
    );
    // Whoever has it whole is not proposed to be requeued, whoever has slices may be.
    let json = ask(&site, &["mig", "plan", "7g.80gb:2", "n1", "--defrag"]);
    assert_eq!(json["defrag"]["possible"], false, "{json}");
    let json = ask(&site, &["mig", "plan", "7g.80gb:2", "n2", "--defrag"]);
    assert_eq!(json["defrag"]["jobs"][0]["job"], "32", "{json}");
}

#[test]
fn a_gpu_with_slices_is_no_free_whole_gpu() {
    let site = site();
    let json = ask(&site, &["topo"]);
    let free = |at: usize| json["nodes"][at]["free"].clone();
    assert_eq!(
        (free(0), free(1)),
        (json!([0, 1, 2, 3]), json!([0, 1, 2, 3])),
        "{json}"
    );
    let json = ask(&site, &["plan", "--gpus-per-node=4", "-w", "n2"]);
    assert_eq!(json["fits"], true, "{json}");
    let json = ask(&site, &["plan", "--gpus-per-node=5", "-w", "n2"]);
    assert_eq!(json["fits"], false, "{json}");
    assert_eq!(json["forecast"]["at"], "2026-11-20T22:00:00", "{json}");
    assert_eq!(json["forecast"]["jobs"], json!(["32"]), "{json}");
    // The slices of one that is out of service are for nobody.
    let nodes = std::fs::read_to_string(site.path("nodes.txt")).unwrap();
    let out = nodes.replace("State=MIXED", "State=MIXED Extra=[gpuos:1 out=4]\n  ");
    site.file("nodes.txt", &out);
    let json = ask(&site, &["mig", "plan", "1g.10gb:8", "n2"]);
    let free = &json["waits"][0]["free"];
    assert_eq!(free.as_array().map(Vec::len), Some(1), "{json}");
}
