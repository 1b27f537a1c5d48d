//! The self-check: does the layout table fit this very process?
//!
//! All reads go through [`crate::mem`], so a wrong table is refused and not a crash. What is
//! compared: the magic numbers of the records, pointers against what Slurm's own lookup functions
//! answer, the size of each record and array against what Slurm's allocator noted, bitmaps against counters, and
//! request strings against request counts. The magic numbers alone are not enough: in 26.05.5 the fields behind an
//! unmoved magic had moved.
//!
//! What a user can write proves nothing against the table: a job that is not understood is a [`Misfit::Job`], and the
//! next one decides.

use std::ffi::{CStr, CString, c_void};

mod nodes;

pub use nodes::nodes;

use crate::api::{self, Api};
use crate::bits;
use crate::conf;
use crate::layout::{Fields, Layout};
use crate::mem::{self, read, read_bytes, read_str};
use crate::sizes;

const JOB_MAGIC: u32 = 0xf0b7_392c;
const DETAILS_MAGIC: u32 = 0x0dea_84e7;
const NODE_MAGIC: u32 = 0x0de5_75ed;
const PART_MAGIC: u32 = 0xaefe_8495;
const LIST_MAGIC: u32 = 0xdead_beef;
/// No site has this many devices of one GRES on a node; a larger count is a misread field.
const SANE_COUNT: u64 = 1 << 20;

/// Why a record is not to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// What was seen speaks against the table.
    Table(String),
    /// The job shows something that is not understood, which may be the job's own doing.
    Job(String),
}

impl From<String> for Misfit {
    fn from(why: String) -> Misfit {
        Misfit::Table(why)
    }
}

impl From<&str> for Misfit {
    fn from(why: &str) -> Misfit {
        Misfit::Table(why.into())
    }
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Misfit::Table(why) | Misfit::Job(why)) = self;
        f.write_str(why)
    }
}

/// Offsets that only the check needs.
#[derive(Clone, Copy, Debug)]
pub struct Strings {
    per_job: usize,
    per_node: usize,
    per_socket: usize,
    per_task: usize,
    gres_name: usize,
}

impl Strings {
    /// The offsets of one release.
    pub fn of(fields: &Fields) -> Result<Strings, String> {
        Ok(Strings {
            per_job: fields.offset("job_record", "tres_per_job")?,
            per_node: fields.offset("job_record", "tres_per_node")?,
            per_socket: fields.offset("job_record", "tres_per_socket")?,
            per_task: fields.offset("job_record", "tres_per_task")?,
            gres_name: fields.offset("gres_state", "gres_name")?,
        })
    }
}

fn pointer(base: usize, offset: usize) -> Result<usize, String> {
    read(base + offset).ok_or_else(|| format!("unreadable memory at offset {offset}"))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// A string that Slurm's allocator made, or null. Users write some of them: any bytes will do.
fn heap_string(base: usize, offset: usize, what: &str) -> Result<Option<String>, String> {
    let at = pointer(base, offset)?;
    if at == 0 {
        return Ok(None);
    }
    let text = sizes::allocated(at)
        .filter(|size| *size < 1 << 26)
        .and_then(|size| read_bytes(at, size))
        .and_then(|bytes| {
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        });
    match text {
        Some(text) => Ok(Some(text)),
        None => Err(format!("{what} is not a string of Slurm's")),
    }
}

/// Checks what a record without GRES or without id must show when Slurm wants to start the job:
/// with a wrong row both read as 0 also for a job that asks for GPUs.
pub fn plain_job(layout: &Layout, strings: &Strings, record: *mut c_void) -> Result<(), Misfit> {
    let at = record as usize;
    identity(layout, record)?;
    for offset in [
        strings.per_job,
        strings.per_node,
        strings.per_socket,
        strings.per_task,
    ] {
        let text = heap_string(at, offset, "a request for GRES")?;
        if text.is_some_and(|text| text.contains("gpu")) {
            let why = "a job that asks for GPUs has no GRES";
            return Err(Misfit::Job(why.into()));
        }
    }
    Ok(())
}

/// Whether a job takes whole nodes by its own wish, read so that it cannot fault: for records that nothing
/// has been held against yet. `None`: unreadable.
pub fn whole_nodes(layout: &Layout, record: *mut c_void) -> Option<bool> {
    let details: usize = read(record as usize + layout.job.details)?;
    let part: usize = read(record as usize + layout.job.part_ptr)?;
    let whole: u8 = read(details + layout.details.whole_node)?;
    let share: u8 = read(details + layout.details.share_res)?;
    let most = read::<u16>(part.wrapping_add(layout.part.max_share));
    Some(whole & 1 == 1 || share == 0 || most == Some(0))
}

/// A job record that Slurm has under its own id, with its details, each of the size that its rows say.
fn identity(layout: &Layout, record: *mut c_void) -> Result<(), String> {
    let at = record as usize;
    sizes::exactly(at, "job_record", layout.job.whole)?;
    ensure(
        read::<u32>(at + layout.job.magic) == Some(JOB_MAGIC),
        || "job record without its magic number".into(),
    )?;
    let details = pointer(at, layout.job.details)?;
    sizes::exactly(details, "job_details", layout.details.whole)?;
    ensure(
        read::<u32>(details + layout.details.magic) == Some(DETAILS_MAGIC),
        || "job details without their magic number".into(),
    )?;
    let id: u32 = read(at + layout.job.job_id).ok_or("unreadable job id")?;
    let found = api::find_job_record(id).ok_or("this daemon has no find_job_record")?;
    ensure(found == record, || {
        format!("job {id} is not the record that Slurm has under that id")
    })
}

/// Checks a job record before its first use through [`crate::handles::Job`], and what it asks for of
/// a GRES.
pub fn job(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    record: *mut c_void,
    gres: Gres,
) -> Result<(), Misfit> {
    let at = record as usize;
    identity(layout, record)?;
    let details = pointer(at, layout.job.details)?;
    let min: u32 = read(details + layout.details.min_nodes).ok_or("unreadable min_nodes")?;
    let max: u32 = read(details + layout.details.max_nodes).ok_or("unreadable max_nodes")?;
    ensure(max == 0 || min <= max, || {
        format!("min_nodes {min} above max_nodes {max}")
    })?;

    multi_core(layout, details)?;

    let env = pointer(at, layout.job.spank_job_env)?;
    let count: u32 =
        read(at + layout.job.spank_job_env_size).ok_or("unreadable spank_job_env_size")?;
    ensure(count < 4096 && (env != 0 || count == 0), || {
        format!("{count} entries in spank_job_env")
    })?;
    sizes::array(env, count as usize, 8, "spank_job_env")?;
    for index in 0..count as usize {
        let entry = heap_string(env, index * 8, "an entry of spank_job_env")?;
        if !entry.is_some_and(|entry| entry.contains('=')) {
            let why = "an entry of spank_job_env without '='";
            return Err(Misfit::Job(why.into()));
        }
    }

    let part = pointer(at, layout.job.part_ptr)?;
    ensure(
        part == 0 || read::<u32>(part + layout.part.magic) == Some(PART_MAGIC),
        || "partition record without its magic number".into(),
    )?;
    if part != 0 {
        sizes::exactly(part, "part_record", layout.part.whole)?;
        let name = heap_string(part, layout.part.name, "the name of the partition")?;
        let found = name.as_deref().and_then(api::find_part_record);
        ensure(found.is_none_or(|found| found as usize == part), || {
            "a partition is not the record that Slurm has under its name".into()
        })?;
        if let Some(topology) = &layout.part_topology {
            heap_string(
                part,
                topology.topology_name,
                "the topology of the partition",
            )?;
        }
    }
    heap_string(at, layout.job.name, "the job's name")?;
    heap_string(at, layout.job.account, "account")?;
    heap_string(at, layout.job.user_name, "user_name")?;
    heap_string(at, layout.job.system_comment, "system_comment")?;
    heap_string(at, layout.job.state_desc, "state_desc")?;
    let reason: u32 = read(at + layout.job.state_reason).ok_or("unreadable state_reason")?;
    ensure(reason < 4096, || format!("state_reason {reason}"))?;
    bitmap_or_null(
        pointer(details, layout.details.req_node_bitmap)?,
        "req_node_bitmap",
    )?;

    let list = pointer(at, layout.job.gres_list_req)?;
    let whole = layout.gres_job.whole;
    let states = states(api, layout, strings, list, "gres_job_state", whole)?;
    let own = states.iter().filter(|(id, _)| *id == gres.id);
    let own: Vec<usize> = own.map(|(_, data)| *data).collect();
    for state in &own {
        request(layout, *state)?;
    }
    counts(layout, strings, at, &own, gres.name)
}

/// What a job asks of cores: null, or a block of Slurm's heap of just the right size.
fn multi_core(layout: &Layout, details: usize) -> Result<(), String> {
    let at = pointer(details, layout.details.mc_ptr)?;
    match layout.multi_core.filter(|_| at != 0) {
        Some(rows) => sizes::exactly(at, "multi_core_data", rows.whole),
        None => Ok(()),
    }
}

fn bitmap_or_null(at: usize, what: &str) -> Result<(), String> {
    ensure(at == 0 || bits::probe(at).is_some(), || {
        format!("{what} is not a bitmap")
    })
}

/// `(plugin_id, gres_data)` of each entry of a GRES list, after checking that its name gives its id and that its data
/// are as large as the structure that they should be.
fn states(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    list: usize,
    structure: &str,
    whole: usize,
) -> Result<Vec<(u32, usize)>, String> {
    if list == 0 {
        return Ok(Vec::new());
    }
    ensure(read::<u32>(list) == Some(LIST_MAGIC), || {
        "a GRES list without its magic number".into()
    })?;
    unsafe extern "C" fn each(item: *mut c_void, argument: *mut c_void) -> i32 {
        // SAFETY: `argument` is the array below; collecting stops at its end.
        let (items, count) = unsafe { &mut *argument.cast::<([usize; 64], usize)>() };
        if *count < items.len() {
            items[*count] = item as usize;
            *count += 1;
        }
        0
    }
    let mut walk = ([0usize; 64], 0usize);
    // SAFETY: the list has its magic, and `each` only stores the items' addresses.
    unsafe { (api.list_for_each)(list as *mut c_void, each, (&raw mut walk).cast()) };
    let mut found = Vec::new();
    for item in &walk.0[..walk.1] {
        sizes::exactly(*item, "gres_state", layout.gres.whole)?;
        let id: u32 = read(item + layout.gres.plugin_id).ok_or("unreadable GRES state")?;
        let name = read_str(pointer(*item, strings.gres_name)?, 256)
            .ok_or("a GRES state without a name")?;
        let name = CString::new(name).map_err(|_| "a GRES name with NUL")?;
        // SAFETY: uint32_t gres_build_id(char *), which only hashes the string.
        let built = unsafe { (api.gres_build_id)(name.as_ptr()) };
        ensure(built == id, || {
            format!("GRES {name:?} has id {id}, not {built}")
        })?;
        let data = pointer(*item, layout.gres.gres_data)?;
        sizes::exactly(data, structure, whole)?;
        found.push((id, data));
    }
    Ok(found)
}

/// Compares the counts of a job's requests for one GRES with the strings they were parsed from. Slurm has an entry for
/// each type: a job that takes whole nodes gets some that nobody asked for, with 0.
fn counts(
    layout: &Layout,
    strings: &Strings,
    job: usize,
    states: &[usize],
    gres: &str,
) -> Result<(), Misfit> {
    let fields = &layout.gres_job;
    for (offset, text, name) in [
        (fields.gres_per_job, strings.per_job, "gres_per_job"),
        (fields.gres_per_node, strings.per_node, "gres_per_node"),
        (
            fields.gres_per_socket,
            strings.per_socket,
            "gres_per_socket",
        ),
        (fields.gres_per_task, strings.per_task, "gres_per_task"),
    ] {
        let mut all = 0;
        for state in states {
            let count: u64 = read(state + offset).ok_or("unreadable GRES request")?;
            ensure(count < SANE_COUNT, || format!("{name} is {count}"))?;
            all += count;
        }
        let text = heap_string(job, text, name)?;
        let asked = text.as_deref().and_then(|text| single_count(text, gres));
        if let Some(asked) = asked.filter(|asked| *asked != all && !states.is_empty()) {
            let why = format!("{name} is {all} where the job asked for {asked}");
            return Err(Misfit::Job(why));
        }
    }
    Ok(())
}

/// Checks what a request for a GRES points at.
fn request(layout: &Layout, state: usize) -> Result<(), String> {
    let fields = &layout.gres_job;
    heap_string(state, fields.type_name, "type_name of a request")?;
    let nodes: u32 = read(state + fields.total_node_cnt).ok_or("unreadable total_node_cnt")?;
    ensure(nodes < 1 << 20, || format!("total_node_cnt is {nodes}"))?;
    let held: u32 = read(state + fields.node_cnt).ok_or("unreadable node_cnt")?;
    ensure(held < 1 << 20, || format!("node_cnt is {held}"))?;
    let given = pointer(state, fields.gres_bit_alloc)?;
    bitmaps(given, held as usize, "gres_bit_alloc")?;
    let select = pointer(state, fields.gres_bit_select)?;
    bitmaps(select, nodes as usize, "gres_bit_select")?;
    let counts = pointer(state, fields.gres_cnt_node_select)?;
    ensure(nodes > 0 || select == 0 && counts == 0, || {
        "a selection of GPUs on no node".into()
    })?;
    sizes::array(counts, nodes as usize, 8, "gres_cnt_node_select")
}

/// Checks an array of bitmaps, each of which may be null.
fn bitmaps(array: usize, count: usize, what: &str) -> Result<(), String> {
    sizes::array(array, count, 8, what)?;
    for index in 0..if array == 0 { 0 } else { count } {
        bitmap_or_null(pointer(array, index * 8)?, what)?;
    }
    Ok(())
}

/// The count in a string with one plain item of a GRES (`gres:gpu:2`, `gres/gpu:h100:4`, `gres/gpu`).
fn single_count(text: &str, gres: &str) -> Option<u64> {
    let own = |item: &&str| item.contains(gres) && (gres != "gpu" || !item.contains("gpuos"));
    let mut items = text.split(',').filter(own);
    let item = items.next()?;
    if items.next().is_some() {
        return None;
    }
    let rest = item
        .strip_prefix("gres")
        .map(|r| r.trim_start_matches([':', '/']))
        .unwrap_or(item);
    match rest.split([':', '=']).collect::<Vec<_>>()[..] {
        [name] if name == gres => Some(1),
        [name, last] | [name, _, last] if name == gres => {
            // A last part that is no number is a type without a count, which means one.
            if last.starts_with(|c: char| c.is_ascii_digit()) {
                last.parse().ok()
            } else {
                Some(1)
            }
        }
        _ => None,
    }
}

/// Checks what a running job holds before it is read through [`crate::handles::Job::for_each_held`].
///
/// `true`: the job holds nodes, and every array was there and fitted. The offsets are the same for all
/// jobs of a process, so that later jobs need no such check. `false`: nothing spoke against them.
pub fn held(layout: &Layout, record: *mut c_void) -> Result<bool, Misfit> {
    let resources = pointer(record as usize, layout.job.job_resrcs)?;
    if resources == 0 {
        return Ok(false);
    }
    let fields = &layout.resources;
    sizes::exactly(resources, "job_resources", fields.whole)?;
    let hosts: u32 = read(resources + fields.nhosts).ok_or("unreadable nhosts")?;
    let map = pointer(resources, fields.node_bitmap)?;
    if map == 0 {
        return Ok(false);
    }
    let (_, set) = bits::probe(map).ok_or("node_bitmap of job_resources is not a bitmap")?;
    ensure(set == hosts as usize, || {
        format!("{set} nodes in the bitmap of {hosts} hosts")
    })?;
    bitmap_or_null(
        pointer(resources, fields.core_bitmap)?,
        "core_bitmap of job_resources",
    )?;
    let (cpus, memory) = (
        pointer(resources, fields.cpus)?,
        pointer(resources, fields.memory_allocated)?,
    );
    sizes::array(cpus, hosts as usize, 2, "cpus of job_resources")?;
    sizes::array(
        memory,
        hosts as usize,
        8,
        "memory_allocated of job_resources",
    )?;
    Ok(hosts > 0 && cpus != 0 && memory != 0)
}

/// A GRES that is read.
#[derive(Clone, Copy, Debug)]
pub struct Gres {
    /// Slurm's id of it.
    pub id: u32,
    name: &'static str,
}

impl Gres {
    /// GRES `gpu`: whole GPUs.
    pub fn gpu(api: &Api) -> Gres {
        Gres::named(api, c"gpu")
    }

    /// GRES `gpuos`: memory slices of GPUs.
    pub fn slices(api: &Api) -> Gres {
        Gres::named(api, c"gpuos")
    }

    /// GRES `shard`: parts of GPUs that several jobs have at a time.
    pub fn shards(api: &Api) -> Gres {
        Gres::named(api, c"shard")
    }

    /// GRES `mps`: parts of GPUs too, under NVIDIA's MPS.
    pub fn mps(api: &Api) -> Gres {
        Gres::named(api, c"mps")
    }

    fn named(api: &Api, name: &'static CStr) -> Gres {
        Gres {
            // SAFETY: uint32_t gres_build_id(char *), which only hashes the string.
            id: unsafe { (api.gres_build_id)(name.as_ptr()) },
            name: name.to_str().unwrap_or_default(),
        }
    }
}

/// Checks slurmctld's configuration: it is as large as its rows say, has `SelectType` where they say, and a
/// `SelectTypeParameters` with which cons_tres runs. Gives the latter, as Slurm's bits.
pub fn configuration(layout: &Layout) -> Result<u16, String> {
    const CPU_SOCKET_OR_CORE: u16 = 0x0007;
    let (at, fields) = (
        api::symbol(c"slurm_conf").ok_or("this daemon has no slurm_conf")?,
        &layout.conf,
    );
    let at = at as usize;
    // Without a symbol of known size the two fields alone have to do.
    let size = sizes::of_variable(c"slurm_conf").filter(|size| *size != 0);
    ensure(size.is_none_or(|size| size == fields.whole), || {
        format!(
            "Slurm's slurm_conf has {} bytes, and {} in the table",
            size.unwrap_or(0),
            fields.whole
        )
    })?;
    let selected = pointer(at, fields.select_type).map(|text| read_str(text, 256));
    ensure(selected == Ok(select_type()), || {
        "slurm_conf.select_type is another text".into()
    })?;
    let parameters: u16 = read(at + fields.select_type_param).ok_or("slurm_conf is unreadable")?;
    ensure(parameters & CPU_SOCKET_OR_CORE != 0, || {
        format!(
            "slurm_conf.select_type_param is {parameters:#x}, with which cons_tres does not run"
        )
    })?;
    Ok(parameters)
}

/// Value of `SelectType` without any offset: the first string starting with `select/` that a word
/// of slurm_conf points at. What the file says where no memory can be read: who is selected has to say that.
pub fn select_type() -> Option<String> {
    let conf = api::symbol(c"slurm_conf")? as usize;
    if mem::detour().is_err() {
        return conf::select_type();
    }
    (0..2048 / 8 * 2)
        .map(|word| conf + word * 8)
        .find_map(|at| {
            let text = read_str(read::<usize>(at)?, 256)?;
            text.starts_with("select/").then_some(text)
        })
}

#[cfg(test)]
mod tests {
    use super::single_count;

    #[test]
    fn request_strings_of_all_releases() {
        for (text, count) in [
            ("gres:gpu:2", Some(2)),
            ("gres/gpu:h100:4", Some(4)),
            ("gres:gpu", Some(1)),
            ("gres/gpu:h100", Some(1)),
            ("gres/gpu=3", Some(3)),
            ("cpu:4,gres/gpu:1", Some(1)),
            ("gres/gpu:a:1,gres/gpu:b:2", None),
            ("gres/gpuos:4", None),
            ("gres/shard:4", None),
            ("gres/gpu:1K", None),
        ] {
            assert_eq!(single_count(text, "gpu"), count, "{text}");
        }
        for (text, count) in [
            ("gres:gpuos:h100-80gb:4", Some(4)),
            ("gres/gpu:2,gres/gpuos:h100-80gb:12", Some(12)),
            ("gres/gpuos", Some(1)),
            ("gres/gpuos:a:1,gres/gpuos:b:2", None),
            ("gres/gpu:2", None),
        ] {
            assert_eq!(single_count(text, "gpuos"), count, "{text}");
        }
    }
}
