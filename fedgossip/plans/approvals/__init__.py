"""Statements of a plan that sites read, and their signed approvals.

It imports `plans.federated`, `audit` and `plans`.  The statement of a run is one JSON file, plan.json
(`plan_statement`): every key that all sites have alike, common files and own modules by their bytes, the model's
layout, the text of the terms.  Its sha256 is the plan.  Statistics that the sites agree on are a step of the plan, so
their file is not in it: the approval has it, or the log's line (agreed) of the run that made it.  A site's choices for
its machine are not in it, so all sites name one hash; projections of frozen tensors are not either, since they round:
the policy pins them.

A site's approvals are an audit log beside its key (`site_approvals`: approved, revoked, used, agreed, refused).  Each
command that starts a participant with records (`cli.run.participant`, one `Gate`) makes the statement again and asks
that log: plan, roster, coordinator, versions of torch and numpy, the seal of the site's records (a hash of a
signature, so that others cannot try digests), day, and the rounds over all runs, which are counted before the first
job (`Ports.first_work`).

A run's folder has plan.json, and approval.jsonl with the site's signed line, which anybody can check alone
(`approvals.read_signed`); `collect` joins them.  A participant that joins by an invite asks the same log before Enrol
(`cli.sites.approval`), and once more when the run begins.  The request has the same form, with the organiser's key of
the invite for the coordinator's, and participant (`JOINING`) and roster open; a release finds the site by its key
(`site_of`).
"""
