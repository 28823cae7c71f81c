"""Upsampling, grid sampling, patches and shuffles against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from pair import same

SIZES = [(2, 3), (10, 14), (9, 10), (20, 21)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest(mode, size):
    same(lambda x: F.interpolate(x, size, mode=mode), torch.randn(2, 3, 5, 7))
    same(lambda x: F.interpolate(x, size[0], mode=mode), torch.randn(2, 3, 7).bfloat16())
    same(lambda x: F.interpolate(x, (*size, 4), mode=mode), torch.randn(2, 3, 5, 7, 3))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("align", [False, True])
def test_smooth(align, size):
    same(lambda x: F.interpolate(x, size, mode="bilinear", align_corners=align), torch.randn(2, 3, 5, 7))
    same(lambda x: F.interpolate(x, size, mode="bicubic", align_corners=align), torch.randn(2, 3, 5, 7, dtype=torch.float64))
    same(lambda x: F.interpolate(x, size[1], mode="linear", align_corners=align), torch.randn(2, 3, 7))
    same(lambda x: F.interpolate(x, (*size, 4), mode="trilinear", align_corners=align), torch.randn(2, 3, 5, 7, 3))


@pytest.mark.parametrize("factor", [2, 1.5, 2.3, 0.6, (1.7, 0.4)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_factors(mode, factor):
    same(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), torch.randn(2, 3, 5, 7))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased(mode):
    same(lambda x: F.interpolate(x, (3, 4), mode=mode, antialias=True), torch.randn(1, 2, 64, 80))
    same(lambda x: F.interpolate(x, (9, 3), mode=mode, antialias=True, align_corners=True), torch.randn(2, 3, 5, 7))


def test_many_outputs_of_one_pixel():
    same(lambda x: F.interpolate(x, (96, 100), mode="bilinear"), torch.randn(1, 1, 2, 3))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid(mode, outside, align):
    grid = torch.rand(2, 4, 6, 2) * 3 - 1.5
    same(lambda x, g: F.grid_sample(x, g, mode, outside, align), torch.randn(2, 3, 5, 7), grid)
    if mode != "bicubic":
        grid = torch.rand(2, 4, 3, 2, 3) * 3 - 1.5
        same(lambda x, g: F.grid_sample(x, g, mode, outside, align), torch.randn(2, 3, 5, 7, 4), grid)


def test_patches():
    same(lambda x: F.unfold(x, (3, 2), (2, 1), (1, 2), (1, 2)), torch.randn(2, 3, 9, 10))
    same(lambda x: F.unfold(x, 2, stride=2), torch.randn(3, 9, 10))
    same(lambda x: F.fold(x, (9, 10), (3, 2), (2, 1), (1, 2), (1, 2)), torch.randn(2, 18, 49))
    same(lambda x: F.fold(x, (8, 10), 2, stride=2), torch.randn(12, 20))


def test_shuffles():
    same(lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 12, 3, 5))
    same(lambda x: F.pixel_unshuffle(x, 2), torch.randn(2, 3, 6, 10))
    same(lambda x: F.channel_shuffle(x, 3), torch.randn(2, 12, 3, 5))
