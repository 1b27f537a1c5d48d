//! What administrators say: drain, online, offline.
use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Audit, Effect};
use super::event::{Admin, Verb};
use super::jobs::{self, At};
use super::rules::{Cure, JobsAre};
use super::service::{back, health, set_service};
use super::state::{Hold, NodeHealth, Service};
use super::step::Ctx;
use super::trend::Watch;
use super::{faults, node as whole};

/// [`super::Event::Admin`].
pub(super) fn admin(node: &mut NodeHealth, ctx: &mut Ctx<'_>, admin: &Admin) {
    let gpus: Vec<NodeGpu> = match admin.gpu {
        Some(gpu) if node.gpu(gpu).is_some() => vec![gpu],
        Some(_) => return,
        None => node.numbers(),
    };
    let reason: String = admin
        .reason
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    let why = match reason.is_empty() {
        true => String::new(),
        false => format!(": {reason}"),
    };
    let force = if admin.force { " --force" } else { "" };
    let word = admin.verb.word();
    ctx.log(Audit {
        gpu: admin.gpu,
        uid: Some(admin.uid),
        text: format!("user {} said {word}{force}{why}", admin.uid),
        ..Audit::default()
    });
    let hold = Hold {
        verb: admin.verb,
        uid: admin.uid,
        reason,
        at_ms: ctx.now_ms,
    };
    match (admin.gpu, admin.verb) {
        (None, Verb::Online) => online_node(node, ctx, admin),
        (None, _) => {
            let reason = format!("gpuos: {word} by user {}{why}", admin.uid);
            hold_node(node, ctx, hold.clone(), reason);
        }
        _ => {}
    }
    for gpu in gpus {
        match admin.verb {
            Verb::Online => online(node, ctx, gpu, admin),
            // A drained node needs no drained GPUs: with the node they come back.
            Verb::Drain if admin.gpu.is_none() => {
                if admin.force {
                    jobs::treat(
                        node,
                        ctx,
                        gpu,
                        At::default(),
                        JobsAre::Requeue,
                        "drained by force",
                    );
                }
            }
            Verb::Drain | Verb::Offline => {
                out(node, ctx, gpu, &hold);
                if admin.force {
                    let text = format!("{word} by force, user {}{why}", admin.uid);
                    jobs::treat(node, ctx, gpu, At::default(), JobsAre::Requeue, &text);
                }
            }
        }
    }
}

fn hold_node(node: &mut NodeHealth, ctx: &mut Ctx<'_>, hold: Hold, reason: String) {
    node.hold = Some(hold);
    if node.drain.as_ref().is_none_or(|drain| drain.leaving) {
        ctx.effects.push(Effect::DrainNode {
            reason: reason.clone(),
        });
        node.drain = Some(whole::new_drain(reason, ctx.now_ms, node.clock));
    }
}

fn online_node(node: &mut NodeHealth, ctx: &mut Ctx<'_>, admin: &Admin) {
    node.hold = None;
    if admin.force {
        node.causes.clear();
    }
    // The administrator waits: no need to look for a while whether all is well.
    if whole::reason(node).is_none() || admin.force {
        whole::undrain(node, ctx);
    }
}

fn out(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, hold: &Hold) {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return;
    };
    health.hold = Some(hold.clone());
    match (hold.verb, health.service) {
        (Verb::Offline, _) => set_service(health, Service::Offline, clock),
        (_, Service::In) => {
            health.was_reset = false;
            health.attempts = 0;
            set_service(health, Service::Draining, clock);
        }
        // A reset or check under way comes to its end, and the GPU stays out.
        _ => {}
    }
    if hold.verb == Verb::Offline {
        ctx.audit(
            Some(gpu),
            "the GPU is offline until an administrator says online",
        );
    }
}

fn online(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, admin: &Admin) {
    let clock = node.clock;
    let has_job = node.has_job(gpu);
    let Some(health) = health(node, gpu) else {
        return;
    };
    health.hold = None;
    health.offline = None;
    health.returns.clear();
    health.attempts = 0;
    health.not_before = 0;
    if health.service == Service::In {
        return;
    }
    if admin.force {
        let text = format!(
            "user {} put the GPU back into service without a check",
            admin.uid
        );
        let watches = health.watches.values_mut();
        watches.for_each(Watch::overrule);
        back(node, ctx, gpu, &text);
        return;
    }
    for cause in &mut health.causes {
        // An administrator's word is what they waited for.
        if matches!(cause.cure, Cure::Admin | Cure::Reboot) {
            cause.cure = Cure::Check;
        }
    }
    if health.causes.is_empty() && health.service == Service::Draining {
        back(
            node,
            ctx,
            gpu,
            "nothing speaks against the GPU; it is back in service",
        );
        return;
    }
    if matches!(health.service, Service::Offline | Service::Draining) {
        let to = if has_job {
            Service::Draining
        } else {
            Service::Drained
        };
        set_service(health, to, clock);
    }
    let text = match faults::still_bad(&node[gpu], ctx) {
        Some(bad) => format!("the GPU is checked when this is over: {bad}"),
        None => "the GPU is checked before it serves again".into(),
    };
    ctx.audit(Some(gpu), text);
}
