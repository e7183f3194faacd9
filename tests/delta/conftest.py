from hypothesis import settings

settings.register_profile("delta", max_examples=40, deadline=None)
settings.load_profile("delta")
