"""What is profiled: models behind one small interface, the inputs they get, and the ranges around their stages."""
