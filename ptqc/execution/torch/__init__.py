"""Running graphs in torch, where gradients are needed; everything here imports torch, so import it only when used."""
