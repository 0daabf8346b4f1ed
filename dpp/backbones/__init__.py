"""Feature extractors: torchvision's and slim ones, pretrained weights, frozen trunks."""
