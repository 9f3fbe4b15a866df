# SPDX-License-Identifier: Apache-2.0
"""Programs whose results are compared: networks, and what of CUDA's libraries PyTorch uses."""

import threading

import torch
from common import DEVICE, main, size
from torch import nn
from torch.nn import functional


def mlp(run):
    """A small network, forwards, backwards and a few steps."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(32, 64).to(DEVICE), torch.randint(10, (32,)).to(DEVICE)
    losses = []
    for _ in range(5):
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    run.keep("losses", losses)
    run.keep("grad", net[0].weight.grad)


def encoder(run):
    """A transformer's encoder in fp16."""
    layer = nn.TransformerEncoderLayer(size(512, 64), 8, batch_first=True)
    net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE).half().eval()
    with torch.inference_mode():
        run.keep("out", net(torch.randn(8, 128, size(512, 64)).to(DEVICE).half()))


def graph(run):
    """A whole training step captured, and replayed with new data."""
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)
    x, y = torch.zeros(32, 64, device=DEVICE), torch.zeros(32, 1, device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    losses = []
    for _ in range(20):
        x.copy_(torch.randn(32, 64))
        y.copy_(torch.randn(32, 1))
        captured.replay()
        losses.append(loss.item())
    run.keep("losses", losses)


def threads(run):
    """Two threads on one context, each on a stream of its own."""

    def work(at):
        state = torch.Generator(DEVICE).manual_seed(at)
        with torch.cuda.stream(torch.cuda.Stream()):
            a = torch.randn(256, 256, device=DEVICE, generator=state)
            total = 0.0
            for _ in range(100):
                a = torch.tanh(a @ a)
                total += a[0].sum().item()
            run.keep(f"thread {at}", total)

    both = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def loader(run):
    """Batches of two worker processes, through pinned memory."""
    data = torch.utils.data.TensorDataset(torch.randn(4096, 256))
    batches = torch.utils.data.DataLoader(data, 64, num_workers=2, pin_memory=True)
    total = torch.zeros(256, device=DEVICE)
    pinned = True
    for (x,) in batches:
        pinned &= x.is_pinned()
        total += x.to(DEVICE, non_blocking=True).square().sum(0)
    run.keep("pinned", str(pinned))
    run.keep("total", total)


def streams(run):
    """Work on streams that wait for each other by events; copies out to pinned memory."""
    a = torch.randn(1024, 1024).to(DEVICE)
    side, out = torch.cuda.Stream(), torch.empty(1024, 1024).pin_memory()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(10):
        b = a @ a
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b.record_stream(side)
            a = b / b.norm()
            out.copy_(a, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        a.record_stream(torch.cuda.current_stream())
    ended.record()
    while not ended.query():
        pass
    run.keep("timed", str(begun.elapsed_time(ended) > 0))
    run.keep("out", out)


def conv(run):
    """Convolutions by cuDNN, forwards and backwards."""
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2))
    net = net.to(DEVICE)
    x = torch.randn(8, 3, 32, 32).to(DEVICE).requires_grad_()
    out = net(x)
    out.square().mean().backward()
    run.keep("out", out)
    run.keep("grad of x", x.grad)
    run.keep("grad of the weight", net[0].weight.grad)


def sdpa(run):
    """Scaled dot product attention in the types that have kernels of their own."""
    for kind in (torch.float16, torch.float32):
        q, k, v = (torch.randn(2, 8, 128, 64).to(DEVICE, kind).requires_grad_() for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.square().mean().backward()
        run.keep(f"{kind}", out)
        run.keep(f"{kind} grad", q.grad)


def fft(run):
    """cuFFT."""
    x = torch.randn(64, 1000).to(DEVICE)
    run.keep("rfft", torch.view_as_real(torch.fft.rfft(x)))
    run.keep("fft2", torch.view_as_real(torch.fft.fft2(x[:, :512].to(torch.complex64))))
    run.keep("back", torch.fft.irfft(torch.fft.rfft(x), n=1000))


def linalg(run):
    """cuSOLVER."""
    a, b = torch.randn(96, 96).to(DEVICE), torch.randn(96, 3).to(DEVICE)
    run.keep("svd", torch.linalg.svdvals(a))
    run.keep("solve", torch.linalg.solve(a, b))
    run.keep("cholesky", torch.linalg.cholesky(a @ a.T + 96 * torch.eye(96, device=DEVICE)))
    run.keep("eigh", torch.linalg.eigvalsh(a + a.T))


def sparse(run):
    """cuSPARSE."""
    a = torch.randn(512, 512).relu().to(DEVICE)
    x = torch.randn(512, 64).to(DEVICE)
    run.keep("coo", torch.sparse.mm(a.to_sparse(), x))
    run.keep("csr", a.to_sparse_csr() @ x)


def random(run):
    """Random numbers made on the GPU."""
    run.keep("normal", torch.randn(10000, device=DEVICE))
    run.keep("permutation", torch.randperm(10000, device=DEVICE))
    run.keep("dropout", functional.dropout(torch.ones(10000, device=DEVICE), 0.5))
    run.keep("choice", torch.multinomial(torch.ones(100, device=DEVICE), 50))


def sort(run):
    """Sorting, scans and what picks by index."""
    x = torch.randn(100000).to(DEVICE)
    values, at = x.sort()
    run.keep("sorted", values)
    run.keep("at", at)
    run.keep("top", x.topk(10).values)
    run.keep("sum", x.double().cumsum(0))
    run.keep("unique", (x * 10).round().unique())
    run.keep("picked", x[x > 1])


def compiled(run):
    """A small model through torch.compile: kernels by Triton."""
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8))
    net = net.to(DEVICE)
    fast = torch.compile(net)
    x = torch.randn(128, 64).to(DEVICE)
    for at in range(3):
        loss = fast(x).softmax(-1).square().mean()
        loss.backward()
        run.keep(f"loss {at}", loss)
    run.keep("grad", net[0].weight.grad)


if __name__ == "__main__":
    main(
        {
            "mlp": mlp,
            "encoder": encoder,
            "graph": graph,
            "threads": threads,
            "loader": loader,
            "streams": streams,
            "conv": conv,
            "sdpa": sdpa,
            "fft": fft,
            "linalg": linalg,
            "sparse": sparse,
            "random": random,
            "sort": sort,
            "compiled": compiled,
        }
    )
