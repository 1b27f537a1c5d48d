//! The self-check: does the layout table fit this very process?
//!
//! All reads go through [`crate::mem`], so a wrong table is refused and not a crash. What is
//! compared: the magic numbers of the records, pointers against what Slurm's own lookup functions
//! answer, bitmaps against counters, and request strings against request counts. The magic numbers
//! alone are not enough: in 26.05.5 the fields behind an unmoved magic had moved.

use std::ffi::{CStr, CString, c_void};

use crate::api::{self, Api};
use crate::bits;
use crate::handles::NodeTable;
use crate::layout::{Fields, Layout};
use crate::mem::{self, read, read_str};

const JOB_MAGIC: u32 = 0xf0b7_392c;
const DETAILS_MAGIC: u32 = 0x0dea_84e7;
const NODE_MAGIC: u32 = 0x0de5_75ed;
const PART_MAGIC: u32 = 0xaefe_8495;
const LIST_MAGIC: u32 = 0xdead_beef;
/// What Slurm's allocator puts two words before what it gives out.
pub(crate) const XMALLOC_MAGIC: u64 = 0x42;

/// No site has this many devices of one GRES on a node; a larger count is a misread field.
const SANE_COUNT: u64 = 1 << 20;

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

/// A string that Slurm's allocator made, or null.
fn heap_string(base: usize, offset: usize, what: &str) -> Result<Option<String>, String> {
    let at = pointer(base, offset)?;
    if at == 0 {
        return Ok(None);
    }
    let magic: Option<u64> = read(at.wrapping_sub(16));
    let size: Option<u64> = read(at.wrapping_sub(8));
    let value = read_str(at, 65_536);
    ensure(
        magic == Some(XMALLOC_MAGIC) && size.is_some_and(|s| s < 1 << 24) && value.is_some(),
        || format!("{what} is not a string of Slurm's"),
    )?;
    Ok(value)
}

/// Checks what a record without GRES or without id must show when Slurm wants to start the job:
/// with a wrong row both read as 0 also for a job that asks for GPUs.
pub fn plain_job(layout: &Layout, strings: &Strings, record: *mut c_void) -> Result<(), String> {
    let at = record as usize;
    identity(layout, record)?;
    for offset in [
        strings.per_job,
        strings.per_node,
        strings.per_socket,
        strings.per_task,
    ] {
        let text = heap_string(at, offset, "a request for GRES")?;
        ensure(text.is_none_or(|t| !t.contains("gpu")), || {
            "a job that asks for GPUs has no GRES".into()
        })?;
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

/// A job record that Slurm has under its own id, with its details.
fn identity(layout: &Layout, record: *mut c_void) -> Result<(), String> {
    let at = record as usize;
    ensure(
        read::<u32>(at + layout.job.magic) == Some(JOB_MAGIC),
        || "job record without its magic number".into(),
    )?;
    let details = pointer(at, layout.job.details)?;
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
) -> Result<(), String> {
    let at = record as usize;
    identity(layout, record)?;
    let details = pointer(at, layout.job.details)?;
    let min: u32 = read(details + layout.details.min_nodes).ok_or("unreadable min_nodes")?;
    let max: u32 = read(details + layout.details.max_nodes).ok_or("unreadable max_nodes")?;
    ensure(max == 0 || min <= max, || {
        format!("min_nodes {min} above max_nodes {max}")
    })?;

    let env = pointer(at, layout.job.spank_job_env)?;
    let count: u32 =
        read(at + layout.job.spank_job_env_size).ok_or("unreadable spank_job_env_size")?;
    ensure(count < 4096 && (env != 0 || count == 0), || {
        format!("{count} entries in spank_job_env")
    })?;
    for index in 0..count as usize {
        let entry = read_str(pointer(env, index * 8)?, 1 << 20);
        ensure(entry.is_some_and(|e| e.contains('=')), || {
            "an entry of spank_job_env without '='".into()
        })?;
    }

    let part = pointer(at, layout.job.part_ptr)?;
    ensure(
        part == 0 || read::<u32>(part + layout.part.magic) == Some(PART_MAGIC),
        || "partition record without its magic number".into(),
    )?;
    if part != 0 {
        heap_string(part, layout.part.name, "the name of the partition")?;
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
    for state in states(api, layout, strings, list)? {
        if state.0 == gres.id {
            request(layout, strings, at, state.1, gres.name)?;
        }
    }
    Ok(())
}

fn bitmap_or_null(at: usize, what: &str) -> Result<(), String> {
    ensure(at == 0 || bits::probe(at).is_some(), || {
        format!("{what} is not a bitmap")
    })
}

/// `(plugin_id, gres_data)` of each entry of a GRES list, after checking that its name gives its id.
fn states(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    list: usize,
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
        let id: u32 = read(item + layout.gres.plugin_id).ok_or("unreadable GRES state")?;
        let name = read_str(pointer(*item, strings.gres_name)?, 256)
            .ok_or("a GRES state without a name")?;
        let name = CString::new(name).map_err(|_| "a GRES name with NUL")?;
        // SAFETY: uint32_t gres_build_id(char *), which only hashes the string.
        let built = unsafe { (api.gres_build_id)(name.as_ptr()) };
        ensure(built == id, || {
            format!("GRES {name:?} has id {id}, not {built}")
        })?;
        found.push((id, pointer(*item, layout.gres.gres_data)?));
    }
    Ok(found)
}

/// Compares the counts of a GRES request with the strings they were parsed from.
fn request(
    layout: &Layout,
    strings: &Strings,
    job: usize,
    state: usize,
    gres: &str,
) -> Result<(), String> {
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
        let count: u64 = read(state + offset).ok_or("unreadable GRES request")?;
        ensure(count < SANE_COUNT, || format!("{name} is {count}"))?;
        let text = heap_string(job, text, name)?;
        if let Some(asked) = text.as_deref().and_then(|text| single_count(text, gres)) {
            ensure(count == asked, || {
                format!("{name} is {count} where the job asked for {asked}")
            })?;
        }
    }
    let kind = pointer(state, fields.type_name)?;
    ensure(kind == 0 || read_str(kind, 256).is_some(), || {
        "type_name is not a string".into()
    })?;
    let nodes: u32 = read(state + fields.total_node_cnt).ok_or("unreadable total_node_cnt")?;
    ensure(nodes < 1 << 20, || format!("total_node_cnt is {nodes}"))?;
    let held: u32 = read(state + fields.node_cnt).ok_or("unreadable node_cnt")?;
    ensure(held < 1 << 20, || format!("node_cnt is {held}"))?;
    let given = pointer(state, fields.gres_bit_alloc)?;
    for index in 0..if given == 0 { 0 } else { held as usize } {
        bitmap_or_null(pointer(given, index * 8)?, "an entry of gres_bit_alloc")?;
    }
    let select = pointer(state, fields.gres_bit_select)?;
    let counts = pointer(state, fields.gres_cnt_node_select)?;
    for index in 0..if select == 0 { 0 } else { nodes as usize } {
        bitmap_or_null(pointer(select, index * 8)?, "an entry of gres_bit_select")?;
    }
    ensure(
        counts == 0 || nodes == 0 || read::<u64>(counts).is_some(),
        || "gres_cnt_node_select is unreadable".into(),
    )
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

/// Checks a node record and its GRES state before their first use.
pub fn node(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    record: *mut c_void,
    gres: Gres,
) -> Result<(), String> {
    let at = record as usize;
    ensure(
        read::<u32>(at + layout.node.magic) == Some(NODE_MAGIC),
        || "node record without its magic number".into(),
    )?;
    let name = read_str(pointer(at, layout.node.name)?, 256).ok_or("a node without a name")?;
    let c_name = CString::new(name.clone()).map_err(|_| "a node name with NUL")?;
    // SAFETY: node_record_t *find_node_record(char *), which only looks up.
    let found = unsafe { (api.find_node_record)(c_name.as_ptr()) };
    ensure(found == record, || {
        format!("node {name} is not the record that Slurm has under that name")
    })?;
    if let Some(extra) = layout.node_extra {
        let text = pointer(at, extra)?;
        let magic = || read::<u64>(text.wrapping_sub(16));
        ensure(text == 0 || magic() == Some(XMALLOC_MAGIC), || {
            format!("the Extra of node {name} is not a string of Slurm's")
        })?;
    }
    for (id, data) in states(api, layout, strings, pointer(at, layout.node.gres_list)?)? {
        if id == gres.id {
            node_gres(layout, data).map_err(|e| format!("node {name}: {e}"))?;
        }
    }
    Ok(())
}

fn node_gres(layout: &Layout, state: usize) -> Result<(), String> {
    let fields = &layout.gres_node;
    let available: u64 = read(state + fields.gres_cnt_avail).ok_or("unreadable GRES state")?;
    let allocated: u64 = read(state + fields.gres_cnt_alloc).ok_or("unreadable GRES state")?;
    ensure(
        available < SANE_COUNT && allocated <= available.max(SANE_COUNT),
        || format!("{allocated} of {available} units allocated"),
    )?;
    let map = pointer(state, fields.gres_bit_alloc)?;
    if map != 0 {
        let (_, set) = bits::probe(map).ok_or("gres_bit_alloc is not a bitmap")?;
        ensure(set as u64 == allocated, || {
            format!("{set} bits for {allocated} allocated units")
        })?;
    }
    let topologies =
        usize::from(read::<u16>(state + fields.topo_cnt).ok_or("unreadable topo_cnt")?);
    let types = usize::from(read::<u16>(state + fields.type_cnt).ok_or("unreadable type_cnt")?);
    ensure(topologies <= 1024 && types <= 1024, || {
        format!("topo_cnt {topologies}, type_cnt {types}")
    })?;
    let (maps, cores) = (
        pointer(state, fields.topo_gres_bitmap)?,
        pointer(state, fields.topo_core_bitmap)?,
    );
    let (used, had) = (
        pointer(state, fields.topo_gres_cnt_alloc)?,
        pointer(state, fields.topo_gres_cnt_avail)?,
    );
    let (names, ids) = (
        pointer(state, fields.topo_type_name)?,
        pointer(state, fields.topo_type_id)?,
    );
    for index in 0..topologies {
        if maps != 0 {
            bitmap_or_null(pointer(maps, index * 8)?, "an entry of topo_gres_bitmap")?;
        }
        if cores != 0 {
            bitmap_or_null(pointer(cores, index * 8)?, "an entry of topo_core_bitmap")?;
        }
        let one: u64 = if used == 0 {
            0
        } else {
            read(used + index * 8).ok_or("unreadable topo_gres_cnt_alloc")?
        };
        let all: u64 = if had == 0 {
            one
        } else {
            read(had + index * 8).ok_or("unreadable topo_gres_cnt_avail")?
        };
        ensure(one <= all && all <= SANE_COUNT, || {
            format!("{one} of {all} units in a topology entry")
        })?;
        if names != 0 {
            let name = pointer(names, index * 8)?;
            ensure(name == 0 || read_str(name, 256).is_some(), || {
                "topo_type_name is not a string".into()
            })?;
        }
        ensure(ids == 0 || read::<u32>(ids + index * 4).is_some(), || {
            "topo_type_id is unreadable".into()
        })?;
    }
    let (counts, type_ids) = (
        pointer(state, fields.type_cnt_alloc)?,
        pointer(state, fields.type_id)?,
    );
    let type_names = pointer(state, fields.type_name)?;
    for index in 0..types {
        let count = if counts == 0 {
            Some(0)
        } else {
            read::<u64>(counts + index * 8)
        };
        ensure(count.is_some_and(|c| c <= SANE_COUNT), || {
            "type_cnt_alloc is unreadable".into()
        })?;
        ensure(
            type_ids == 0 || read::<u32>(type_ids + index * 4).is_some(),
            || "type_id is unreadable".into(),
        )?;
        if type_names != 0 {
            let name = pointer(type_names, index * 8)?;
            ensure(name == 0 || read_str(name, 256).is_some(), || {
                "type_name is not a string".into()
            })?;
        }
    }
    let len: i32 = read(state + fields.link_len).ok_or("unreadable link_len")?;
    ensure((0..=1024).contains(&len), || format!("link_len is {len}"))?;
    let links = pointer(state, fields.links_cnt)?;
    ensure(links != 0 || len == 0, || {
        "a link matrix without rows".into()
    })?;
    for row in 0..len as usize {
        let row = pointer(links, row * 8)?;
        let last = row + (len as usize - 1) * 4;
        ensure(
            row == 0 || (read::<i32>(row).is_some() && read::<i32>(last).is_some()),
            || "a row of the link matrix is unreadable".into(),
        )?;
    }
    Ok(())
}

/// Checks what a running job holds before it is read through [`crate::handles::Job::for_each_held`].
///
/// `true`: the job holds nodes, and every array was there and fitted. The offsets are the same for all
/// jobs of a process, so that later jobs need no such check. `false`: nothing spoke against them.
pub fn held(layout: &Layout, record: *mut c_void) -> Result<bool, String> {
    let resources = pointer(record as usize, layout.job.job_resrcs)?;
    if resources == 0 {
        return Ok(false);
    }
    let fields = &layout.resources;
    let hosts: u32 = read(resources + fields.nhosts).ok_or("unreadable nhosts")?;
    let map = pointer(resources, fields.node_bitmap)?;
    if map == 0 {
        return Ok(false);
    }
    let (_, set) = bits::probe(map).ok_or("node_bitmap of job_resources is not a bitmap")?;
    ensure(set == hosts as usize, || {
        format!("{set} nodes in the bitmap of {hosts} hosts")
    })?;
    let (cpus, memory) = (
        pointer(resources, fields.cpus)?,
        pointer(resources, fields.memory_allocated)?,
    );
    if hosts > 0 {
        let last = hosts as usize - 1;
        ensure(cpus == 0 || read::<u16>(cpus + last * 2).is_some(), || {
            "cpus of job_resources is unreadable".into()
        })?;
        ensure(
            memory == 0 || read::<u64>(memory + last * 8).is_some(),
            || "memory_allocated of job_resources is unreadable".into(),
        )?;
    }
    Ok(hosts > 0 && cpus != 0 && memory != 0)
}

/// Checks the nodes of the table: all of them up to [`EVERY_NODE_UP_TO`] with GRES, then one in [`ONE_IN`].
///
/// # Safety
/// The caller holds at least slurmctld's node read lock.
pub unsafe fn nodes(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    table: NodeTable,
    gres: Gres,
) -> Result<(), String> {
    // Some 200 reads a node: one by one, those of 12,500 nodes took slurmctld 2.7 s.
    mem::in_blocks(|| {
        let (mut with_gres, mut since) = (0, 0);
        for index in 0..table.len() {
            // SAFETY: by the caller.
            let record = unsafe { table.raw(index) };
            if record.is_null() {
                continue;
            }
            since += 1;
            if with_gres >= EVERY_NODE_UP_TO && since < ONE_IN {
                continue;
            }
            since = 0;
            node(api, layout, strings, record, gres)?;
            let list = pointer(record as usize, layout.node.gres_list)?;
            with_gres += usize::from(list != 0);
        }
        Ok(())
    })
}

/// So many nodes with GRES are all checked. They share one layout: of those after them one in [`ONE_IN`] is.
const EVERY_NODE_UP_TO: usize = 1024;
/// See [`EVERY_NODE_UP_TO`].
const ONE_IN: usize = 16;

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

/// Value of `SelectType` without any offset: the first string starting with `select/` that a word
/// of slurm_conf points at.
pub fn select_type() -> Option<String> {
    let conf = api::symbol(c"slurm_conf")? as usize;
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
