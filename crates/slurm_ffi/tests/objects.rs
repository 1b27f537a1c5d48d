//! Probe objects made by a libslurmfull.so without a cluster, for releases of which there is no more:
//! `GPUOS_LIBSLURM=/opt/slurm/lib/slurm/libslurmfull.so GPUOS_RELEASE=23.11.11 cargo test -p slurm_ffi --test objects`.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use slurm_ffi::api;
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::probe;
use slurm_ffi::release::Release;

#[test]
fn a_library_makes_what_its_rows_say() {
    let (Ok(library), Ok(release)) = (
        std::env::var("GPUOS_LIBSLURM"),
        std::env::var("GPUOS_RELEASE"),
    ) else {
        return;
    };
    let release = Release::parse(&release).expect("a release");
    let folder = tempfile::tempdir().expect("a folder");
    let conf = folder.path().join("slurm.conf");
    let plugins = Path::new(&library).parent().expect("a folder").display();
    let text = format!(
        "ClusterName=probe\nSlurmctldHost=localhost\nGresTypes=gpu\nNodeName=localhost Gres=gpu:2\nPluginDir={plugins}\n"
    );
    std::fs::write(&conf, text).expect("writes");
    let library = CString::new(library).expect("a path");
    let conf = CString::new(conf.to_string_lossy().into_owned()).expect("a path");
    // SAFETY: Slurm's library, which reads the file and its GRES plugins, and is never closed; slurm_conf_init(const char *)
    // and gres_init(void) in every release.
    unsafe {
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        let handle = libc::dlopen(library.as_ptr(), flags);
        assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        let begin = api::symbol(c"slurm_conf_init").expect("a function");
        let begin: unsafe extern "C" fn(*const c_char) -> c_int = std::mem::transmute(begin);
        begin(conf.as_ptr());
        let gres = api::symbol(c"gres_init").expect("a function");
        let gres: unsafe extern "C" fn() -> c_int = std::mem::transmute(gres);
        gres();
    }
    let fields = Fields::of(release, None).expect("rows");
    let layout = Layout::of(&fields).expect("complete");
    probe::objects(&fields, &layout, release).expect("a right table");
    // And the probes do see what the library has: not one of the tables that differ passes.
    for (structure, field) in [
        ("gres_job_state", "cpus_per_gres"),
        ("gres_job_state", "node_cnt"),
        ("gres_node_state", "topo_cnt"),
        ("gres_node_state", "type_cnt"),
        ("job_resources", "nhosts"),
    ] {
        let mut wrong = fields.clone();
        assert!(wrong.recompile(structure, field, 2, |_| false));
        let layout = Layout::of(&wrong).expect("natural");
        probe::objects(&wrong, &layout, release).expect_err(field);
    }
}
