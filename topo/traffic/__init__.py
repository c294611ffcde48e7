"""Collective, algorithm, topology → bytes and hops on each link, and the rates links allow.

Read in this order.

``groups``
    Arrangements: groups that are shifts of each other and lie on nodes alike.
``grid_order``
    The order of a group's members along the fabric, and data parts dimension by dimension.
``transfers``
    Bytes from rank to rank, by algorithm (ring, tree, NVLS, PAT, …).
``hops``
    Chains of hops that follow one another, by algorithm.
``steps``
    Flows step by step, along each ring, tree or chain: `transfers` in the order of `hops`.
``link_loads``
    Transfers of many groups summed over links.
``route_latency``
    Latency of routes along chains of hops.
``patterns``
    `Pattern`: an operation by an algorithm; its loads and latencies for an arrangement.
``link_limits``
    The highest rate that links allow a communication that is alone; `Placement`.
``link_model``
    `LinkModel`: loads and limits of all groups on the links of a topology, cached.

A new algorithm of a collective is a name in `transfers.ALGORITHMS`, its transfers in
`transfers.transfers`, its chains of hops in `hops.hop_chains`, its steps in
`steps.collective_steps`.
"""
