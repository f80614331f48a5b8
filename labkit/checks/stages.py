"""What checks see of a model that ranks share by layers: what each rank holds, and the gradients it updates them with."""

from torch.optim.optimizer import register_optimizer_step_pre_hook

from labkit.checks import compare
from labkit.launcher import run_ranks
from labkit.observed import ObservedJob
from labkit.training import build

PATIENCE_S = 10  # for ranks that wait for each other; a rank that computes is not waiting


def one_update(strategy, job, *, world_size):
    """One report per rank of a single update: {"gradients": {name: tensor or None}, "sent": messages}."""
    options = {"device": "cpu", "timeout": PATIENCE_S, "live": False, "warn": False}
    run = run_ranks(update_rank, (strategy, job), {}, world_size=world_size, **options)
    for report, traffic in zip(run.results, run.traffic):
        report["sent"] = traffic["send"].calls if "send" in traffic else 0
    return run.results


def update_rank(rank, strategy, job):
    """What each rank does: one update, and a copy of the gradients just before it."""
    observed = ObservedJob.of(job)
    step = build(strategy, rank, observed)
    rank._recorder.clear()
    gradients = {}

    def keep(*_):
        for model in observed.notes.made:
            for name, parameter in model.named_parameters(remove_duplicate=False):
                gradients[name] = None if parameter.grad is None else parameter.grad.detach().clone()

    register_optimizer_step_pre_hook(keep)
    (batch,) = job.batches(1)
    step(*(tensor.to(rank.device) for tensor in batch))
    return {"gradients": gradients}


def parts(report):
    """The parts of the model that a rank's gradients belong to: {"embed", "blocks", "head"}."""
    return {name.partition(".")[0] for name in report["gradients"]}


def gradient_cause(reports, job, *, tolerance=1e-9):
    """The first rank and parameter whose gradient is not that of one device, in one sentence; None where all are."""
    right = whole_gradients(job)
    for rank, report in enumerate(reports):
        ours = report["gradients"]
        if missing := [name for name in ours if ours[name] is None]:
            return f"on rank {rank}, {len(missing)} of {len(ours)} parameters have no gradient, such as `{missing[0]}`"
        for name, gradient in ours.items():
            if cause := compare(gradient, right[name], tolerance=tolerance):
                return f"on rank {rank}, the gradient of `{name}`: {cause}"
    return None


def whole_gradients(job):
    """{name: gradient} of the first batch on one device; a tied weight stands under both its names."""
    model = job.model()
    tokens, targets = next(job.batches(1))
    job.loss(model(tokens), targets).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)}
