"""Real pods by a real kubelet and containerd while each part fails in turn; judged from outside."""
