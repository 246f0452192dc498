"""Statements of a plan that sites read, and their signed approvals.

It imports `plans.federated`, `audit` and `plans`.  plan.json (`plan_statement`) has every key that all sites share,
common files and modules by their bytes, the model's layout, and the text of the terms; its sha256 is the plan.  Agreed
statistics, a site's choices for its machine, and projections of tensors are not in it.

A site's approvals are an audit log beside its key (`site_approvals`: approved, revoked, used, agreed, refused).  Each
command that starts a participant with records (one `Gate`) makes the statement again and asks that log: plan, roster,
coordinator, versions, the seal of the records, day, and rounds over all runs, counted before the first job
(`Ports.first_work`).

A run's folder has plan.json and approval.jsonl with the site's signed line, which anybody can check
(`approvals.read_signed`).  A participant that joins by an invite asks the same log before Enrol, and again at the
start, with the organiser's key of the invite, and participant (`JOINING`) and roster open.
"""
