//! What the plugin keeps between calls: offsets of the release, and the cluster.

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use gpuos_config::options::{JobOptions, PREFIX, Sources};
use gpuos_model::messages::Message;
use gpuos_placement::rules::Target;
use slurm_ffi::api;
use slurm_ffi::conf;
use slurm_ffi::layout::Fields;
use slurm_ffi::log;
use slurm_ffi::mem::{self, read as read_at};
use slurm_ffi::preempt::Preemption;
use slurm_ffi::release::Release;

use crate::checkpoint;
use crate::environment;
use crate::forbid::{self, Places};
use crate::hands::Hands;
use crate::jobs::Names;
use crate::memory::{self, Raised};
use crate::memory_share;
use crate::messages::{impossible, in_log, refused};
use crate::mig::{self, Chosen};
use crate::notes;
use crate::refusal::Refusal;
use crate::request::{self, Offsets};
use crate::shape::Shape;
use crate::share;
use crate::site::{Cluster, Read, now, read_site, unreadable};
use crate::spares::{self, Change};
use crate::texts::Texts;
use crate::turns;
use crate::wake::LetGo;

struct Known {
    fields: Fields,
    offsets: Offsets,
    /// Where the environment of a job stands that no command made.
    environment: Option<environment::Offsets>,
    /// Where a job with spare nodes is changed.
    spares: Option<spares::Offsets>,
    /// Where a job has the memory that it asks for.
    memory: Option<memory::Offsets>,
    texts: Texts,
    release: Release,
    /// Where names of partitions, accounts and QOS stand.
    places: Option<Places>,
    /// Where it is seen that a job is let go.
    let_go: Option<LetGo>,
    /// Where jobs have their names.
    names: Option<Names>,
    /// Where it is seen whose jobs others preempt.
    preemption: Option<Preemption>,
    /// Why no GPU can be shared here, if none can.
    unshared: Option<Message>,
}

/// Absent when this release cannot be read: everything is accepted then.
static KNOWN: OnceLock<Option<Known>> = OnceLock::new();

/// The cluster and the time at which slurmctld had read its configuration when it was made. Absent
/// cluster: the site's files have a mistake, or gpuos does not place jobs. What is forbidden is so even then, and checkpoints have
/// nothing to do with places.
static CLUSTER: Mutex<Option<Read>> = Mutex::new(None);

/// Reads layouts and files once, and says in the log when jobs will not be checked.
pub fn start(release: Release) {
    KNOWN.get_or_init(|| match known(release) {
        Ok(known) => Some(known),
        Err(why) => {
            log::error(&in_log::unchecked(why));
            None
        }
    });
    if let Some(Some(known)) = KNOWN.get() {
        with_cluster(known, |_| ());
    }
}

fn known(release: Release) -> Result<Known, String> {
    // Which way is taken select/gpuos tells.
    mem::detour()?;
    let fields = conf::fields(release)?;
    let offsets = Offsets::of(&fields)?;
    Ok(Known {
        texts: Texts::of(&fields),
        places: Places::of(&fields),
        let_go: LetGo::of(&fields),
        names: Names::of(&fields),
        preemption: Preemption::of(&fields),
        environment: environment::Offsets::of(&fields),
        spares: spares::Offsets::of(&fields),
        memory: memory::Offsets::of(&fields),
        fields,
        offsets,
        release,
        unshared: share::impossible(release, slurm_ffi::check::select_type().as_deref()),
    })
}

/// Checks the texts of a new job or of a change.
pub fn texts(description: *mut c_void) -> Result<(), Refusal> {
    match KNOWN.get() {
        Some(Some(known)) => known.texts.check(description),
        _ => Ok(()),
    }
}

/// Checks a new job, and puts into its description what gpuos adds to what it asks of each node or for each GPU, and the numbers of a
/// job with spare nodes.
/// Gives what its user is to be told.
pub fn submit(description: *mut c_void, hands: &Hands) -> Result<Option<String>, Refusal> {
    let Some(Some(known)) = KNOWN.get() else {
        return Ok(None);
    };
    let Some(mut env) = known.offsets.asked_env(description) else {
        unreadable();
        return Ok(None);
    };
    if !has_options(&env) {
        let of = known.environment.as_ref();
        if environment::take(of, description, env.len(), hands)? {
            env = known.offsets.asked_env(description).unwrap_or_default();
        }
    }
    if !has_options(&env) {
        return no_shards_by_name(known, description).map(|()| None);
    }
    let sources = Sources::from_spank_env(env.iter().map(String::as_str));
    let taken = take(known, (&env, &sources), description, hands);
    taken.map_err(|refusal| refusal.named_by(&sources))
}

/// Refuses a job that asks for shards by their name, where jobs share GPUs in turns with their memory: it would use memory that others have.
fn no_shards_by_name(known: &Known, description: *mut c_void) -> Result<(), Refusal> {
    let in_turns = |read: &mut Read| match &read.cluster {
        Some(cluster) => cluster.turns > 0,
        None => false,
    };
    match with_read(known, in_turns) {
        true => match known.offsets.asked_shape(description) {
            Some(shape) => share::by_name(&shape),
            None => Ok(()),
        },
        false => Ok(()),
    }
}

fn take(
    known: &Known,
    (env, sources): (&[String], &Sources),
    description: *mut c_void,
    hands: &Hands,
) -> Result<Option<String>, Refusal> {
    let options = || JobOptions::from_spank_env(env.iter().map(String::as_str));
    if let Some(places) = &known.places {
        with_read(known, |read| {
            let place = places.asked(description).or_default();
            forbid::check(&read.forbidden, &options()?, &place)
        })?;
    }
    let Some(shape) = known.offsets.asked_shape(description) else {
        unreadable();
        return Ok(None);
    };
    let options = options()?;
    if options.share.is_none() {
        no_shards_by_name(known, description)?;
    }
    with_read(known, |read| match &read.checkpoint {
        Some(config) => checkpoint::check(config, &options, &shape),
        None => Ok(()),
    })?;
    checkpoint::component(&options, known.offsets.component(description))?;
    checkpoint::memory(&options, known.offsets.memory_mib(description))?;
    let Some(raised) = spares::raise(&options, sources, &shape)? else {
        return with_memory(known, (env, sources), (description, shape), hands);
    };
    if let Some(have) = with_read(known, |read| read.nodes) {
        raised.fits(have)?;
    }
    let offsets = known.spares.as_ref();
    let offsets = offsets.ok_or_else(|| Refusal::from(raised.unknown()))?;
    let Some(changes) = raised.changes(description, offsets)? else {
        unreadable();
        return Ok(None);
    };
    let of_job = (description, raised.shape.clone());
    let said = with_memory(known, (env, sources), of_job, hands)?;
    (hands.put)(description, &changes);
    let note = String::from(raised.note(sources));
    Ok(Some(
        said.map_or(note.clone(), |said| format!("{note}\n{said}")),
    ))
}

/// Checks what is about GPUs, and adds to the memory of a job what these take of the host's.
fn with_memory(
    known: &Known,
    (env, sources): (&[String], &Sources),
    (description, shape): (*mut c_void, Shape),
    hands: &Hands,
) -> Result<Option<String>, Refusal> {
    let options = JobOptions::from_spank_env(env.iter().map(String::as_str))?;
    let (asked, option) = match (&options.memory, turns::asked(&options)) {
        (Some(asked), _) => (asked.to_string(), "--gpuos-mem"),
        (None, Some((share, _))) => (share.to_string(), "--gpuos-share"),
        (None, None) => return place(known, (env, sources), (description, shape), hands),
    };
    let refuse = |why: Message| Refusal::from(refused::nothing_given(&asked, option, why));
    let offsets = known.memory.as_ref();
    let offsets = offsets.ok_or_else(|| refuse(impossible::memory_not_in_table()))?;
    let host = offsets.host(description);
    let host = host.ok_or_else(|| refuse(impossible::memory_not_in_table()))?;
    let of = known.places.as_ref();
    let of = of.map(|places| places.asked(description).or_default());
    let chosen = with_read(known, |read| match &read.memory {
        Some(inventory) => {
            let said = (&options, sources);
            if let Some(chosen) = turns::choose(inventory, said, &shape, &host)? {
                return Ok(Some(chosen));
            }
            let chosen = memory::choose(inventory, said, &shape, host)?;
            if let (Some(_), Some(asked), Some(of)) = (&chosen, &options.memory, &of) {
                memory_share::check(inventory, (asked, of), &shape)?;
            }
            Ok(chosen)
        }
        None => Err(refuse(impossible::files_have_a_mistake())),
    })?;
    let said = place(known, (env, sources), (description, shape), hands)?;
    let Some(chosen) = chosen else {
        return Ok(said);
    };
    let done = match chosen.raised {
        Some(Raised::Node(mib)) => {
            (hands.put)(description, &[Change::Long(offsets.per_node, mib)]);
            true
        }
        Some(Raised::Gpu(text)) => (hands.rewrite)(offsets.text_per_gpu(description), &text),
        None => true,
    };
    if !done {
        return Err(refuse(impossible::no_memory()));
    }
    let note = String::from(chosen.sentence);
    Ok(Some(
        said.map_or(note.clone(), |said| format!("{note}\n{said}")),
    ))
}

/// Checks what is about places, and slices or shares of GPUs.
fn place(
    known: &Known,
    (env, sources): (&[String], &Sources),
    (description, shape): (*mut c_void, Shape),
    hands: &Hands,
) -> Result<Option<String>, Refusal> {
    let options = || JobOptions::from_spank_env(env.iter().map(String::as_str));
    let unnamed = |targets: &[Target<'_>]| {
        let names = known.names.as_ref()?;
        // SAFETY: slurmctld calls job_submit under its job read lock, in every release.
        unsafe { names.unnamed(description, &known.offsets, targets) }
    };
    let checked = with_cluster(known, |cluster| -> Result<_, Refusal> {
        let mut options = options()?;
        notes::silence(&mut options, sources, &shape);
        cluster.catalogue.check(&options, sources, &shape)?;
        let chosen = chosen(known, cluster, (&options, sources), &shape)?;
        let notes = cluster.catalogue.notes(&options, sources, &shape, &unnamed);
        Ok((chosen, notes, options))
    });
    let of_checkpoints =
        |options: &JobOptions| checkpoint_notes(known, (options, sources), (description, &shape));
    let Some(checked) = checked else {
        let why = impossible::not_placed_by_gpuos();
        let options = options().unwrap_or_default();
        return refuse_gres_options(&options, &why).map(|()| joined(&of_checkpoints(&options)));
    };
    let (chosen, notes, options) = checked?;
    let mut said = Vec::new();
    if let Some(chosen) = chosen {
        if !(hands.rewrite)(known.offsets.per_node(description), &chosen.per_node) {
            return refuse_gres_options(&options, &impossible::no_memory()).map(|()| None);
        }
        said.push(chosen.sentence);
    }
    said.extend(notes);
    said.extend(of_checkpoints(&options));
    Ok(joined(&said))
}

/// What the user of a job with checkpoints is to know.
fn checkpoint_notes(
    known: &Known,
    of @ (options, sources): (&JobOptions, &Sources),
    (description, shape): (*mut c_void, &Shape),
) -> Vec<Message> {
    let requeues = known.offsets.requeues(description);
    let place = |places: &Places| places.asked(description).or_default();
    let place = known.places.as_ref().map(place).unwrap_or_default();
    let graces = || {
        let preemption = known.preemption.as_ref()?;
        let asked = place.asked(known.offsets.user(description)?);
        // SAFETY: slurmctld calls job_submit under its read lock of partitions, in every release, and without a lock of its association
        // manager.
        Some(unsafe { preemption.grace(asked) })
    };
    let grace = with_read(known, |read| {
        let config = read.checkpoint.as_ref()?;
        let graces = options.checkpoint.and_then(|_| graces())?;
        checkpoint::grace(config, &graces, of, shape)
    });
    let note = checkpoint::note(options, sources, requeues);
    let of_cpus = known.offsets.memory_of_cpus(description);
    let memory = of_cpus.and_then(|of| checkpoint::memory_note(options, sources, of));
    note.into_iter().chain(memory).chain(grace).collect()
}

/// Notes as lines; `None` where there is none.
fn joined(notes: &[Message]) -> Option<String> {
    (!notes.is_empty()).then(|| notes.join("\n"))
}

/// What a job asks of Slurm that says what part of GPUs it wants.
fn chosen(
    known: &Known,
    cluster: &Cluster,
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
) -> Result<Option<Chosen>, Refusal> {
    // Before the slices: it says that the two contradict each other.
    if let Some(share) = options.share {
        if let Some(why) = &known.unshared {
            return refuse_gres_options(options, why).map(|()| None);
        }
        let said = (options, sources);
        let chosen = share::choose(
            (cluster.shards, cluster.turns),
            share,
            said,
            shape,
            known.release,
        )?;
        let place = (share, cluster.nvme.as_deref());
        return share::with_nvme(chosen, place, shape, known.release).map(Some);
    }
    let request = options.mig.as_ref();
    let chosen =
        request.map(|request| mig::choose(&cluster.mig, (request, sources), shape, known.release));
    chosen.transpose()
}

/// Refuses what only gpuos turns into GRES where it cannot: the job would start without it.
fn refuse_gres_options(options: &JobOptions, why: &Message) -> Result<(), Refusal> {
    let mig = options
        .mig
        .as_ref()
        .map(|mig| ("--gpuos-mig", mig.to_string()));
    let share = options
        .share
        .map(|share| ("--gpuos-share", share.to_string()));
    match mig.or(share) {
        Some((option, value)) => Err(refused::nothing_given(value, option, why).into()),
        None => Ok(()),
    }
}

/// Checks a change of a job, if it is about nodes, tasks or GPUs.
pub fn modify(description: *mut c_void, record: *mut c_void) -> Result<(), Refusal> {
    let Some(Some(known)) = KNOWN.get() else {
        return Ok(());
    };
    let offsets = &known.offsets;
    if let Some(places) = &known.places {
        let update = places.asked(description);
        let env = (!update.is_nothing()).then(|| offsets.record_env(record));
        if let Some(env) = env.flatten().filter(|env| has_options(env)) {
            let entries = || env.iter().map(String::as_str);
            let options = JobOptions::from_spank_env(entries());
            let place = places.record(record).updated(update);
            with_read(known, |read| {
                forbid::check(&read.forbidden, &options.unwrap_or_default(), &place)
            })
            .map_err(|refusal| refusal.named_by(&Sources::from_spank_env(entries())))?;
        }
    }
    memory_stays(known, description, record)?;
    no_shards_by_name(known, description)?;
    let Some(update) = offsets.asked_shape(description).filter(request::touches) else {
        return Ok(());
    };
    let Some((env, now)) = offsets.record_env(record).zip(offsets.record_shape(record)) else {
        unreadable();
        return Ok(());
    };
    if !has_options(&env) {
        return Ok(());
    }
    let shape = request::merged(now, &update);
    let sources = Sources::from_spank_env(env.iter().map(String::as_str));
    // What slurmctld took at submission is not questioned now.
    let options = JobOptions::from_spank_env(env.iter().map(String::as_str));
    let mut options = options.unwrap_or_default();
    with_read(known, |read| match &read.checkpoint {
        Some(config) => {
            checkpoint::nodes(config, &options, &spares::without(shape.clone(), &options))
        }
        None => Ok(()),
    })
    .map_err(|refusal| refusal.named_by(&sources))?;
    with_cluster(known, |cluster| {
        notes::silence(&mut options, &sources, &shape);
        if let Some(request) = &options.mig {
            mig::check_update("--gpuos-mig", request, &update)?;
        }
        if let Some(share) = &options.share {
            mig::check_update("--gpuos-share", share, &update)?;
        }
        if options.is_default() || options.off {
            Ok(())
        } else {
            cluster.catalogue.check(&options, &sources, &shape)
        }
    })
    .unwrap_or(Ok(()))
    .map_err(|refusal| refusal.named_by(&sources))
}

/// Refuses a change that would take host memory from a job whose GPUs need it.
fn memory_stays(
    known: &Known,
    description: *mut c_void,
    record: *mut c_void,
) -> Result<(), Refusal> {
    let offsets = &known.offsets;
    let env = offsets.record_env(record).filter(|env| has_options(env));
    let Some((env, memory)) = env.zip(known.memory.as_ref()) else {
        return Ok(());
    };
    let options = JobOptions::from_spank_env(env.iter().map(String::as_str));
    let options = options.unwrap_or_default();
    if options.memory.is_none() && turns::asked(&options).is_none() {
        return Ok(());
    }
    let host = memory.host(description);
    let shapes = (offsets.asked_shape(description)).zip(offsets.record_shape(record));
    let Some((host, (update, now))) = host.zip(shapes) else {
        unreadable();
        return Ok(());
    };
    let then = request::merged(now.clone(), &update);
    with_read(known, |read| match (&read.memory, &options.memory) {
        (Some(inventory), Some(asked)) => {
            memory::check_update(inventory, asked, (&now, &then), &host)
        }
        _ => turns::check_update(&options, &host),
    })
    .map_err(|refusal| refusal.named_by(&Sources::from_spank_env(env.iter().map(String::as_str))))
}

/// Whether a change lets a job with gpuos options go that waits after a requeue.
pub fn is_let_go(description: *mut c_void, record: *mut c_void) -> bool {
    let Some(Some(known)) = KNOWN.get() else {
        return false;
    };
    let now = now().unwrap_or(0);
    let meant = |it: &LetGo| it.is_meant(description, record, now);
    let env = || known.offsets.record_env(record);
    known.let_go.as_ref().is_some_and(meant) && env().is_some_and(|env| has_options(&env))
}

fn has_options(env: &[String]) -> bool {
    env.iter().any(|entry| entry.starts_with(PREFIX))
}

/// Runs `check` on the cluster, which is made again when slurmctld has read its configuration again.
fn with_cluster<T>(known: &Known, check: impl FnOnce(&mut Cluster) -> T) -> Option<T> {
    with_read(known, |read| read.cluster.as_mut().map(check))
}

/// The same on all that was read.
fn with_read<T>(known: &Known, check: impl FnOnce(&mut Read) -> T) -> T {
    let mut read = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    let at = configured_at();
    match &mut *read {
        Some(read) if read.at == at && read.settled => check(read),
        read => {
            let of = (&known.fields, known.release);
            check(read.insert(read_site(of, known.memory.as_ref(), at)))
        }
    }
}

/// When slurmctld last read slurm.conf, in seconds since the epoch. Releases before 23.11 keep their
/// plugins loaded over `scontrol reconfigure`; later ones start slurmctld anew.
fn configured_at() -> i64 {
    // last_update is the first field of slurm_conf_t in every release.
    api::symbol(c"slurm_conf")
        .and_then(|conf: *mut c_void| read_at(conf as usize))
        .unwrap_or(0)
}
