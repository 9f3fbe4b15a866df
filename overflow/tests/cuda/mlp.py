# SPDX-License-Identifier: Apache-2.0
"""A small network, forwards, backwards and one step; says what came out, exactly."""

import torch

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = False
net = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
).cuda()
step = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(32, 64).cuda()
y = torch.randint(10, (32,)).cuda()
for _ in range(5):
    loss = torch.nn.functional.cross_entropy(net(x), y)
    step.zero_grad()
    loss.backward()
    step.step()
    print(loss.item().hex(), net[0].weight.grad.double().sum().item().hex())
