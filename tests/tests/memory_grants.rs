//! `--gpuos-mem` in real Slurm clusters: what is added to the memory of a job, and a CUDA program that has more than its GPU, over the
//! simulated driver.

use std::ffi::{CString, c_void};
use std::fs;
use std::os::unix::fs::symlink;

use gpuos_lab::{Suite, field};
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

per_suite!(a_program_has_more_memory_than_its_gpu);

/// A GPU of 64 MiB, of which programs have all.
const GPUOS: &str = "[memory]\noversubscribe = true\nreserve-mib = 0\n\n\
    [[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 64\n\n\
    [[nodes]]\nmatch = \"n1\"\ntype = \"small\"\n";

/// What a program sees of it.
const SHOW: &str = "echo \"[$LD_PRELOAD|$GPUOS_MEM_GRANT|$GPUOS_MEM_POLICY|$GPUOS_MEM_HBM|${GPUOS_MEM_SOCKET##*/}]\"";

/// A node whose plugstack.conf names the library that was built. Without a gpuosd what programs are lent is theirs by the environment.
pub fn lab(mut setup: Setup) -> Option<Cluster> {
    setup.spec.nodes = 1.into();
    setup.spec.job_submit = true;
    if setup.spec.simulated_gpus.is_none() {
        setup.spec.node_type = "small".into();
    }
    setup.spec.gpuos_toml = Some(GPUOS.into());
    let cluster = setup.steered()?;
    with_library(&cluster);
    Some(cluster)
}

/// Has plugstack.conf of a lab name the library that was built.
pub fn with_library(cluster: &Cluster) {
    let file = cluster.lab.dir().join("etc/plugstack.conf");
    let text = fs::read_to_string(&file).expect("plugstack.conf");
    let library = library(cluster);
    let text = text.replace(
        "spank_gpuos.so",
        &format!("spank_gpuos.so preload={library}"),
    );
    fs::write(&file, text).expect("plugstack.conf");
}

/// Where jobs find the library, under the name that it is installed with, and beside it the simulated driver.
pub fn library(cluster: &Cluster) -> String {
    let folder = cluster.lab.dir().join("cuda");
    fs::create_dir_all(&folder).expect("a folder");
    for (built, name) in [
        ("libgpuos_preload.so", "libgpuos_preload.so.0"),
        ("libcuda.so", "libcuda.so.1"),
    ] {
        let link = folder.join(name);
        if !link.exists() {
            symlink(plugins::programs().join(built), link).expect("a link");
        }
    }
    let path = folder.join("libgpuos_preload.so.0");
    path.to_str().expect("a path").to_owned()
}

/// What a job has in Slurm's record that asks for memory, with nothing but digits of its value.
fn asked(cluster: &Cluster, job: u32, key: &str) -> String {
    let shown = cluster.show(job);
    let value = field(&shown, key).unwrap_or_default();
    value.rsplit(':').next().unwrap_or_default().to_owned()
}

/// Submits a job that is held; what it asks for by `key`, and what sbatch says.
pub fn held(cluster: &Cluster, args: &[&str], key: &str) -> (String, String) {
    let (job, said) = cluster
        .submit_held(args)
        .unwrap_or_else(|why| panic!("{args:?}: {why}"));
    let asks = asked(cluster, job, key);
    cluster.run("scancel", &[&job.to_string()]);
    (asks, said)
}

fn requests(cluster: &Cluster) {
    let mem = "--gpuos-mem=256M";
    for (args, key, wanted) in [
        (
            &["--gres=gpu:1", "--mem=100", mem][..],
            "MinMemoryNode",
            "292M",
        ),
        (&["--gres=gpu:2", "--mem=100", mem], "MinMemoryNode", "484M"),
        (
            &["--gpus=h100:2", "--mem=100", mem],
            "MinMemoryNode",
            "484M",
        ),
        (
            &[
                "--ntasks-per-node=3",
                "-N1",
                "--gpus-per-task=1",
                "--mem=100",
                mem,
            ],
            "MinMemoryNode",
            "676M",
        ),
        (&["--gpus=2", "--mem-per-gpu=100", mem], "MemPerTres", "292"),
        (
            &["--gpus=1", "--array=1-2", "--mem=100", mem],
            "MinMemoryNode",
            "292M",
        ),
        // What the GPU has itself takes nothing of the host.
        (
            &["--gres=gpu:1", "--mem=100", "--gpuos-mem=64M"],
            "MinMemoryNode",
            "100M",
        ),
        // Nothing changes without it.
        (&["--gres=gpu:1", "--mem=100"], "MinMemoryNode", "100M"),
        (&["--mem=100", mem], "MinMemoryNode", "100M"),
    ] {
        let (asks, said) = held(cluster, args, key);
        assert_eq!(asks, wanted, "{args:?}: {said}");
        let told = args.contains(&mem);
        assert_eq!(
            said.contains("gpuos: --gpuos-mem=256M"),
            told,
            "{args:?}: {said}"
        );
    }
    // Each component of a heterogeneous job has its own.
    let both = [
        "--gres=gpu:1",
        "--mem=100",
        mem,
        ":",
        "--gres=gpu:2",
        "--mem=200",
        mem,
    ];
    let (job, said) = cluster.submit_held(&both).expect("it is taken");
    let all = cluster.run("scontrol", &["show", "job", &job.to_string()]);
    for wanted in ["MinMemoryNode=292M", "MinMemoryNode=584M"] {
        assert!(all.contains(wanted), "{wanted}: {said}\n{all}");
    }
    cluster.run("scancel", &[&job.to_string()]);
    for (args, why) in [
        (
            &["--gres=gpu:1", mem][..],
            "write --mem=SIZE or --mem-per-gpu=SIZE with it",
        ),
        (
            &["--gres=gpu:1", "--mem-per-cpu=100", mem],
            "write --mem=SIZE or --mem-per-gpu=SIZE in its place",
        ),
        (
            &["--gres=gpu:1", "--mem=100", "--gpuos-mem=257M"],
            "write at most 256M here",
        ),
        (
            &["--gres=gpu:1", "--mem=100", "--gpuos-mem=65M,tiers=hbm"],
            "write at most 64M here",
        ),
        (
            &["--gres=gpu:1", "--mem=100", "--gpuos-mem=1"],
            "the unit M, G or T is missing",
        ),
        (
            &[
                "--gres=gpu:1",
                "--mem=100",
                "--gpuos-mem=80G,tiers=hbm+nvme",
            ],
            "the tier nvme is not part of this release",
        ),
        (
            &["--gres=gpu:1", "--mem=100", "--gpuos-mem=80G,policy=best"],
            "is not one of gpuos, lru",
        ),
        (
            &["--gres=gpu:1", "--mem=100", mem, "--gpuos-mps=on"],
            "does not go with --gpuos-mps=on",
        ),
        (
            &["--gres=gpu:b200:1", "--mem=100", mem],
            "no node of this cluster has such GPUs",
        ),
    ] {
        let said = cluster.submit_held(args).expect_err("it is refused");
        assert!(
            said.contains(why) && said.contains("--gpuos-mem="),
            "{args:?}: {said}"
        );
    }
    changes(cluster);
}

/// Memory that was added for the GPUs stays with them.
fn changes(cluster: &Cluster) {
    let args = ["--gres=gpu:1", "--mem=100", "--gpuos-mem=256M"];
    let (job, _) = cluster.submit_held(&args).expect("it is taken");
    let id = format!("JobId={job}");
    for (change, taken) in [
        ("MinMemoryNode=191", false),
        ("MinMemoryCPU=100", false),
        ("MinMemoryNode=192", true),
        ("MinMemoryNode=500", true),
    ] {
        let told = cluster.try_run("scontrol", &["update", &id, change]);
        assert_eq!(told.is_ok(), taken, "{change}: {told:?}");
    }
    cluster.run("scancel", &[&job.to_string()]);
}

/// The output of a job that has ended well.
fn output(cluster: &Cluster, args: &[&str], script: &str) -> String {
    let job = cluster.sbatch(args, script);
    let state = cluster.wait(job, &["COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED"]);
    let file = cluster.lab.dir().join(format!("work/{job}.out"));
    let text = fs::read_to_string(file).unwrap_or_default();
    assert_eq!(state, "COMPLETED", "{args:?}: {text}");
    text
}

/// The command of the program below, on a simulated GPU of 64 MiB.
pub fn program(cluster: &Cluster) -> String {
    let test = std::env::current_exe().expect("this program");
    let folder = cluster.lab.dir().join("cuda");
    format!(
        "env LD_LIBRARY_PATH={} GPUOS_CUDA=memory=64M {CLIENT}=1 CUDA_MPS_PIPE_DIRECTORY=/nonexistent \
         {} --exact memory_grants::client --nocapture",
        folder.display(),
        test.display()
    )
}

/// What of 256 MiB does not fit into the GPU.
const LENT_OF_HOST: &str = "201326592";

/// With a gpuosd a program has what that gives it, and no more than its job has by slurmctld's record.
fn gpuosd_lends_it() {
    let setup = Setup::simulated("grants-lent", &Suite::Native, 1);
    let Some(cluster) = lab(setup) else { return };
    let program = program(&cluster);
    let args = ["--gres=gpu:1", "--mem=100", "--gpuos-mem=256M"];
    let stay = cluster.lab.dir().join("work/stay");
    fs::write(&stay, "").expect("written");
    // The driver's GPUs are those that gpuosd sees.
    let gpus = cluster.lab.dir().join("nvml/n1/state");
    let script = format!(
        "srun env GPUOS_GRANTS_STAYS={} GPUOS_NVML_STATE={} {program}",
        stay.display(),
        gpus.display()
    );
    let job = cluster.sbatch(&args, &script);
    let gpuos = plugins::programs().join("gpuos").display().to_string();
    let sockets = cluster.lab.gpuosd_runtime_dir("n1");
    let sockets = sockets.to_str().expect("UTF-8");
    let file = cluster.lab.dir().join(format!("work/{job}.out"));
    let said = || fs::read_to_string(&file).unwrap_or_default();
    let shown = cluster.until("gpuosd shows what it has lent", || {
        assert!(!said().contains("panicked"), "{}", said());
        let words = [
            "mem",
            "show",
            &job.to_string(),
            "--json",
            "--runtime-dir",
            sockets,
        ];
        let shown = cluster.try_run(&gpuos, &words).ok()?;
        shown.contains(LENT_OF_HOST).then_some(shown)
    });
    fs::remove_file(&stay).expect("removed");
    let state = cluster.wait(job, &["COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED"]);
    let text = said();
    assert_eq!(state, "COMPLETED", "{text}\n{shown}");
    assert!(text.contains("all bytes are right, of 268435456"), "{text}");
    // What is lent goes with the process.
    cluster.until("nothing is lent any more", || {
        let words = ["mem", "show", "--json", "--runtime-dir", sockets];
        let shown = cluster.try_run(&gpuos, &words).ok()?;
        (!shown.contains(LENT_OF_HOST)).then_some(())
    });
    cluster.drained();
}

fn a_program_has_more_memory_than_its_gpu(suite: &Suite) {
    if *suite == Suite::Native {
        gpuosd_lends_it();
    }
    let Some(cluster) = lab(Setup::new("grants", suite)) else {
        return;
    };
    requests(&cluster);
    let library = library(&cluster);
    let args = ["--gres=gpu:1", "--mem=100", "--gpuos-mem=256M,policy=lru"];
    let own = format!("[{library}|268435456|lru||gpuosd.sock.memory]");
    let none = "[||||]";
    // The script and its steps; a step that has undone it, and one that asks for more than its job has.
    let steps = format!(
        "{SHOW}; srun sh -c '{SHOW}'; srun --gpuos-mem=off sh -c '{SHOW}'; srun --gpuos-mem=128M sh -c '{SHOW}'; \
         srun --gpuos-mem=9T sh -c '{SHOW}'; srun --gres=none sh -c '{SHOW}'"
    );
    let text = output(&cluster, &args, &steps);
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    let half = format!("[{library}|134217728|gpuos||gpuosd.sock.memory]");
    assert_eq!(shown, [&own, &own, none, &half, &own, none], "{text}");
    assert!(
        text.contains("--gpuos-mem=9T says nothing: a step has what its job has"),
        "{text}"
    );
    // What is counted for GPUs is its steps' too.
    let args_of_gpus = ["--gpus=1", "--mem-per-gpu=100", "--gpuos-mem=256M"];
    let text = output(
        &cluster,
        &args_of_gpus,
        "srun sh -c 'echo asks=$SLURM_MEM_PER_GPU.'",
    );
    assert!(text.contains("asks=."), "{text}");
    // What the user loads himself comes after it, and a job without the option has what it had.
    let loads = "ALL,LD_PRELOAD=libm.so.6";
    let text = output(&cluster, &[&args[..], &["--export", loads]].concat(), SHOW);
    assert!(text.contains(&format!("[{library}:libm.so.6|")), "{text}");
    let text = output(&cluster, &["--gres=gpu:1", "--export", loads], SHOW);
    assert!(text.contains("[libm.so.6||||]"), "{text}");
    // A job that is submitted by one with the option has nothing of it.
    let inner = cluster.script("inner", SHOW);
    let outer =
        format!("sbatch --wait --gres=gpu:1 --mem=10 --output=inner.out {inner}; cat inner.out");
    let text = output(&cluster, &args, &outer);
    assert!(text.contains(none), "{text}");
    let only = output(
        &cluster,
        &["--gres=gpu:1", "--mem=9", "--gpuos-mem=32M,tiers=hbm"],
        SHOW,
    );
    assert!(only.contains("|33554432|gpuos|33554432|"), "{only}");
    // The program itself, in the script and in a step.
    let program = program(&cluster);
    let text = output(&cluster, &args, &format!("{program} && srun {program}"));
    assert_eq!(
        text.matches("all bytes are right, of 268435456").count(),
        2,
        "{text}"
    );
    // Without the option it has what the GPU has, which is too little.
    let job = cluster.sbatch(&["--gres=gpu:1", "--mem=100"], &program);
    cluster.wait(job, &["FAILED"]);
    cluster.drained();
}

/// Has the test below be a program of a job.
pub const CLIENT: &str = "GPUOS_GRANTS_CLIENT";

/// The driver as a program opens it.
pub struct Driver(*mut c_void);

impl Driver {
    pub fn open() -> Driver {
        // SAFETY: a C string; the library's initialisers are Rust's own.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "no libcuda.so.1");
        Driver(library)
    }

    /// Calls a function whose arguments are all numbers and pointers.
    pub fn code(&self, name: &str, arguments: &[u64]) -> u32 {
        let symbol = CString::new(name).unwrap();
        // SAFETY: an open library and a C string.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "no {name}");
        // SAFETY: a function of the driver, with its arguments.
        unsafe { gpuos_driver::call(address as usize, arguments) }
    }

    pub fn call(&self, name: &str, arguments: &[u64]) {
        let code = self.code(name, arguments);
        assert_eq!(code, 0, "{name} gave {code}");
    }

    /// The same of a function that gives a number by its first argument.
    pub fn get(&self, name: &str, rest: &[u64]) -> u64 {
        let mut value = 0u64;
        self.call(name, &[&[&raw mut value as u64], rest].concat());
        value
    }

    /// The kernels that fill words and add them.
    pub fn fill_and_add(&self) -> (u64, u64) {
        let text = "gpuos-cubin 1\nkernel fill\nkernel add\n\0";
        let module = self.get("cuModuleLoadData", &[text.as_ptr() as u64]);
        let kernel = |name: &std::ffi::CStr| {
            self.get("cuModuleGetFunction", &[module, name.as_ptr() as u64])
        };
        (kernel(c"fill"), kernel(c"add"))
    }

    pub fn launch(&self, kernel: u64, arguments: &[u64]) {
        let places: Vec<*const u64> = arguments.iter().map(std::ptr::from_ref).collect();
        let all = [kernel, 1, 1, 1, 32, 1, 1, 0, 0, places.as_ptr() as u64, 0];
        self.call("cuLaunchKernel", &all);
    }
}

/// A program of a job: three buffers that are three times its GPU, sums of two in the third.
#[test]
fn client() {
    if std::env::var_os(CLIENT).is_none() {
        return;
    }
    const BYTES: u64 = 60 << 20;
    const WORDS: u64 = BYTES / 4;
    let cuda = Driver::open();
    cuda.call("cuInit", &[0]);
    cuda.get("cuCtxCreate_v2", &[0, 0]);
    let (mut free, mut total) = (0u64, 0u64);
    cuda.call(
        "cuMemGetInfo_v2",
        &[&raw mut free as u64, &raw mut total as u64],
    );
    let [a, b, sum] = [(); 3].map(|()| cuda.get("cuMemAlloc_v2", &[BYTES]));
    let (fill, add) = cuda.fill_and_add();
    for round in 1..=8u64 {
        cuda.launch(fill, &[a, round, WORDS]);
        cuda.launch(fill, &[b, round * 1000, WORDS]);
        cuda.launch(add, &[sum, a, b, WORDS]);
        cuda.call("cuCtxSynchronize", &[]);
    }
    let mut bytes = vec![0u8; BYTES as usize];
    let place = bytes.as_mut_ptr() as u64;
    cuda.call("cuMemcpyDtoH_v2", &[place, sum, BYTES]);
    let wanted = 8008u32.to_ne_bytes();
    assert!(bytes.chunks_exact(4).all(|word| word == wanted));
    println!("all bytes are right, of {total}");
    if let Some(stay) = std::env::var_os("GPUOS_GRANTS_STAYS") {
        while fs::exists(&stay).unwrap_or(false) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
